"""``POST /v1/chat/completions`` as plain ASGI, the one hot path: for models of the plan, and for apps."""

import logging
from collections.abc import Awaitable, Callable
from secrets import token_hex

import msgspec
from starlette.types import Receive, Scope, Send

from omnibus.errors import Fatal, NotFound, OmnibusError
from omnibus.metrics import GATEWAY
from omnibus.settings import GatewaySettings
from services.gateway.apps.chat import AppChats
from services.gateway.http.exchange import ChatExchange, ClientLeft, body_chunks, send_error, while_connected
from services.gateway.openai import vllm_omni
from services.gateway.openai.chat_request import ChatRequest
from services.gateway.openai.parse import parse_chat, read_body
from services.gateway.request.continuing import OriginalRequest, ResumableStream
from services.gateway.tasks.chat import Chat

log = logging.getLogger(__name__)

_DIALECT = vllm_omni.HEADER.encode()

#: Answers a chat request that wants pictures.
Draw = Callable[[ChatRequest, Scope, Receive, Send], Awaitable[None]]
#: Reads a request that is in another dialect: the dialect's name, and the body.
Translate = Callable[[str, bytes], ChatRequest]


class ChatRoute:
    """Answers chat requests; ``apps`` are asked first, for their models are registered while others run.

    ``draw`` answers those that want pictures, ``translate`` reads those that are in another dialect.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        chat: Chat,
        apps: AppChats | None = None,
        draw: Draw | None = None,
        translate: Translate | None = None,
    ) -> None:
        self._settings = settings
        self._chat = chat
        self._apps = apps
        self._draw = draw
        self._translate = translate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._serve_exchange(self._open_exchange, scope, receive, send)

    async def resume_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Continue a streamed answer after the event that the client had last."""
        await self._serve_exchange(self._resume_exchange, scope, receive, send)

    async def _serve_exchange(self, begin: "Begin", scope: Scope, receive: Receive, send: Send) -> None:
        opening = PendingChat()
        try:
            exchange = await begin(opening, scope, receive, send)
        except ClientLeft:
            opening.count_outcome("cancelled")
            return
        except OmnibusError as error:
            opening.count_outcome(error.code, known=not isinstance(error, NotFound))
            await send_error(send, error, f"req-{token_hex(8)}")
            return
        except Exception:  # a defect of ours: the client gets an error in the usual shape, the log the rest
            id = f"req-{token_hex(8)}"
            log.exception("%s failed", id)
            opening.count_outcome(Fatal.code)
            await send_error(send, Fatal("internal error: the gateway's log has more under this request id"), id)
            return
        if exchange is not None:
            await exchange.send_answer(scope, receive, send)

    async def _open_exchange(
        self, opening: "PendingChat", scope: Scope, receive: Receive, send: Send
    ) -> ChatExchange | None:
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        declared = int(length) if length.isdigit() else None
        body = await read_body(body_chunks(receive), self._settings.max_body, declared)
        named = headers.get(_DIALECT)
        if named is None or self._translate is None:
            wanted = parse_chat(body)
        else:
            wanted = self._translate(named.decode("latin-1"), body)
        opening.model = wanted.model
        if wanted.wants_images and self._draw is not None:
            await self._draw(wanted, scope, receive, send)
            return None
        request = OriginalRequest(body, headers.get(b"x-omnibus-path", b"").decode("latin-1"))
        if self._chat.continuations is not None:
            opening.continued = self._chat.continuations.begin_stream(wanted, headers, request)
        return await self._start_exchange(scope, receive, wanted, request.path, opening)

    async def _resume_exchange(self, opening: "PendingChat", scope: Scope, receive: Receive, _: Send) -> ChatExchange:
        if self._chat.continuations is None:
            raise NotFound("streamed answers are not continued here")
        last = dict(scope["headers"]).get(b"last-event-id", b"").decode("latin-1")
        opening.continued, record = await self._chat.continuations.adopt_stream(scope["path_params"]["token"], last)
        wanted = msgspec.structs.replace(parse_chat(record.body), seed=record.seed)
        opening.model = wanted.model
        return await self._start_exchange(scope, receive, wanted, record.path, opening)

    async def _start_exchange(
        self, scope: Scope, receive: Receive, wanted: ChatRequest, pinned: str, opening: "PendingChat"
    ) -> ChatExchange:
        try:
            return await self._create_exchange(scope, receive, wanted, pinned, opening.continued)
        except BaseException:
            if opening.continued is not None:
                opening.continued.close()
            raise

    async def _create_exchange(
        self, scope: Scope, receive: Receive, wanted: ChatRequest, pinned: str, continued: ResumableStream | None
    ) -> ChatExchange:
        app = self._apps.app_name(wanted.model) if self._apps is not None else ""
        deadline, known = (continued.deadline, continued.known) if continued is not None else (0.0, ())
        if self._apps is None or not app:
            run, output = await self._chat.start_request(wanted, pinned, deadline, known)
            return ChatExchange(run, wanted, output, keeper=self._chat.spoken, continued=continued)
        start = self._apps.start_chat(app, wanted, pinned, deadline)
        run, output, call = await while_connected(scope, receive, start)
        return ChatExchange(run, wanted, output, call.close, self._chat.spoken, continued)


class PendingChat:
    """State of a request before its answer begins."""

    def __init__(self) -> None:
        self.model = ""
        self.continued: ResumableStream | None = None

    def count_outcome(self, code: str, known: bool = True) -> None:
        GATEWAY.request_counter(self.model if known else "", code).inc()


#: Reads a request and sends it on its way; None when it is answered already.
Begin = Callable[[PendingChat, Scope, Receive, Send], Awaitable[ChatExchange | None]]
