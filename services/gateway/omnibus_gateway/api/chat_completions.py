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

    def handle_request(self, post: PostRequest, sending: ResponseWriter) -> Awaitable[None]:
        dialect = post.headers.get(_DIALECT)
        chat_request: ChatRequest
        if dialect is not None:
            chat_request = self._translate(dialect.decode("latin-1"), post.body)
        else:
            chat_request = parse_chat(post.body) if len(post.body) < MIN_CUT_BYTES else parse_chat_media(post.body)
        sending.model = chat_request.model
        prices = post.prices
        if chat_request.wants_images:
            return self._draw.answer_chat(chat_request, post, sending)
        resumable_stream = None
        if self._chat.continuations is not None and not prices.quote:
            request = OriginalRequest(post.body, post.pinned)
            resumable_stream = self._chat.continuations.begin_stream(chat_request, post.headers, request)
        return self.answer_chat(chat_request, post.pinned, sending, resumable_stream, prices)

    async def answer_chat(
        self,
        chat_request: ChatRequest,
        pinned_path: str,
        sending: ResponseWriter,
        resumable_stream: ResumableStream | None,
        prices: PriceOptions = NO_PRICES,
    ) -> None:
        """Answer ``chat_request`` by its ``pinned_path`` path; with ``resumable_stream`` another gateway can continue
        it.

        ``prices`` can request the usage in the answer, and limit its price.
        """
        chat = self._chat
        try:
            run = sending.run = self.chats.open_request(chat_request.model, chat_request.seed, pinned_path)
            if prices is not NO_PRICES:
                chat.check_price(run, prices)
            meter = chat.meter if prices.usage else None
            if chat_request.choice_count > 1:
                await self._answer_choices(run, chat_request, sending, meter)
                return
            got = run.answer = AnswerAccumulator(chat_request.model, run.created)
            if resumable_stream is not None:
                resumable_stream.attach_request(run)
            async with run_to_end(run):
                prepared_chat = await chat.prepare_request(run, chat_request)
                output = await self.chats.begin_answer(run, prepared_chat)
                if chat_request.stream:
                    extra = await resumable_stream.save_record(run) if resumable_stream is not None else None
                    parts = stream_events(run, chat_request, output, got, chat.spoken, resumable_stream, meter)
                    await sending.send_stream(parts, extra=extra)
                    return
                body = await render_completion(run, chat_request, output, got, chat.spoken, meter)
            await sending.send_body(JSON, body)
        finally:
            if resumable_stream is not None:
                resumable_stream.close()

    async def _answer_choices(
        self, run: ClientRequest, chat_request: ChatRequest, sending: ResponseWriter, meter: UsageMeter | None
    ) -> None:
        if not run.model:
            raise BadRequest(f"{chat_request.model} is an app and supports one choice: omit n", param="n")
        got = run.answer = ChoicesAccumulator(chat_request.model, run.created, chat_request.choice_count)
        async with run_to_end(run):
            outputs = await self._chat.begin_choices(run, await self._chat.prepare_request(run, chat_request))
            if chat_request.stream:
                await sending.send_stream(stream_choices(run, chat_request, outputs, got, meter))
                return
            body = await render_choices(run, chat_request, outputs, got, meter)
        await sending.send_body(JSON, body)


class ResumeRoute(PostRoute):
    """Continues a streamed answer after the last event that its client received."""

    def __init__(self, settings: GatewaySettings, chat: Chat, route: ChatRoute) -> None:
        super().__init__(settings)
        self._continuations = chat.continuations
        self._route = route

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        if self._continuations is None:
            raise NotFound("this gateway does not continue streamed answers")
        last = post.headers.get(b"last-event-id", b"").decode("latin-1")
        resumable_stream, record = await self._continuations.adopt_stream(post.scope["path_params"]["token"], last)
        chat_request = msgspec.structs.replace(parse_chat(record.body), seed=record.seed)
        sending.model = chat_request.model
        await self._route.answer_chat(chat_request, record.path, sending, resumable_stream)
