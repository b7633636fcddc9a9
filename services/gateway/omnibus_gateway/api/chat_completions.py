"""``POST /v1/chat/completions``, the one hot path: for models of the plan, and for apps."""

from collections.abc import Awaitable

import msgspec

from omnibus.errors import BadRequest, NotFound
from omnibus.settings import GatewaySettings
from omnibus_gateway.api.chat_images import ImageChatRoute
from omnibus_gateway.api.dialects import DialectTranslator
from omnibus_gateway.apps.chat import AppChats
from omnibus_gateway.http.exchange import PostRequest, PostRoute
from omnibus_gateway.http.response import JSON, ResponseWriter
from omnibus_gateway.openai import vllm_omni
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.cut_media import MIN_CUT_BYTES, parse_chat_media
from omnibus_gateway.openai.parse import parse_chat
from omnibus_gateway.pricing.headers import NO_PRICES, PriceOptions
from omnibus_gateway.pricing.meter import UsageMeter
from omnibus_gateway.request.accumulator import AnswerAccumulator
from omnibus_gateway.request.choices_accumulator import ChoicesAccumulator
from omnibus_gateway.request.continuing import OriginalRequest, ResumableStream
from omnibus_gateway.request.lifecycle import run_to_end
from omnibus_gateway.request.request import ClientRequest
from omnibus_gateway.tasks.chat import Chat
from omnibus_gateway.tasks.chat_response import render_completion, stream_events
from omnibus_gateway.tasks.choices_response import render_choices, stream_choices

_DIALECT = vllm_omni.HEADER.encode()


class ChatRoute(PostRoute):
    """Answers chats; ``draw`` handles those that request images, ``translate`` other dialects."""

    reads_prices = True

    def __init__(
        self, settings: GatewaySettings, chat: Chat, draw: ImageChatRoute, translate: DialectTranslator
    ) -> None:
        super().__init__(settings)
        self._chat = chat
        self._draw = draw
        self._translate = translate
        #: The chats of apps as well, once there are any: their models are registered at run time.
        self.chats: Chat | AppChats = chat

    def handle_request(self, asked: PostRequest, sending: ResponseWriter) -> Awaitable[None]:
        named = asked.headers.get(_DIALECT)
        wanted: ChatRequest
        if named is not None:
            wanted = self._translate(named.decode("latin-1"), asked.body)
        else:
            wanted = parse_chat(asked.body) if len(asked.body) < MIN_CUT_BYTES else parse_chat_media(asked.body)
        sending.model = wanted.model
        prices = asked.prices
        if wanted.wants_images:
            return self._draw.answer_chat(wanted, asked, sending)
        continued = None
        if self._chat.continuations is not None and not prices.quote:
            request = OriginalRequest(asked.body, asked.pinned)
            continued = self._chat.continuations.begin_stream(wanted, asked.headers, request)
        return self.answer_chat(wanted, asked.pinned, sending, continued, prices)

    async def answer_chat(
        self,
        wanted: ChatRequest,
        pinned: str,
        sending: ResponseWriter,
        continued: ResumableStream | None,
        prices: PriceOptions = NO_PRICES,
    ) -> None:
        """Answer ``wanted`` by its ``pinned`` path; with ``continued`` another gateway can continue it.

        ``prices`` can request the usage in the answer, and limit its price.
        """
        chat = self._chat
        try:
            run = sending.run = self.chats.open_request(wanted.model, wanted.seed, pinned)
            if prices is not NO_PRICES:
                chat.check_price(run, prices)
            meter = chat.meter if prices.usage else None
            if wanted.choice_count > 1:
                await self._answer_choices(run, wanted, sending, meter)
                return
            got = run.answer = AnswerAccumulator(wanted.model, run.created)
            if continued is not None:
                continued.attach_request(run)
            async with run_to_end(run):
                asked = await chat.prepare_request(run, wanted)
                output = await self.chats.begin_answer(run, asked)
                if wanted.stream:
                    extra = await continued.save_record(run) if continued is not None else None
                    parts = stream_events(run, wanted, output, got, chat.spoken, continued, meter)
                    await sending.send_stream(parts, extra=extra)
                    return
                body = await render_completion(run, wanted, output, got, chat.spoken, meter)
            await sending.send_body(JSON, body)
        finally:
            if continued is not None:
                continued.close()

    async def _answer_choices(
        self, run: ClientRequest, wanted: ChatRequest, sending: ResponseWriter, meter: UsageMeter | None
    ) -> None:
        if not run.model:
            raise BadRequest(f"{wanted.model} is an app and supports one choice: omit n", param="n")
        got = run.answer = ChoicesAccumulator(wanted.model, run.created, wanted.choice_count)
        async with run_to_end(run):
            outputs = await self._chat.begin_choices(run, await self._chat.prepare_request(run, wanted))
            if wanted.stream:
                await sending.send_stream(stream_choices(run, wanted, outputs, got, meter))
                return
            body = await render_choices(run, wanted, outputs, got, meter)
        await sending.send_body(JSON, body)


class ResumeRoute(PostRoute):
    """Continues a streamed answer after the last event that its client received."""

    def __init__(self, settings: GatewaySettings, chat: Chat, route: ChatRoute) -> None:
        super().__init__(settings)
        self._continuations = chat.continuations
        self._route = route

    async def handle_request(self, asked: PostRequest, sending: ResponseWriter) -> None:
        if self._continuations is None:
            raise NotFound("this gateway does not continue streamed answers")
        last = asked.headers.get(b"last-event-id", b"").decode("latin-1")
        continued, record = await self._continuations.adopt_stream(asked.scope["path_params"]["token"], last)
        wanted = msgspec.structs.replace(parse_chat(record.body), seed=record.seed)
        sending.model = wanted.model
        await self._route.answer_chat(wanted, record.path, sending, continued)
