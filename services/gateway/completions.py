"""``POST /v1/chat/completions`` as plain ASGI, the one hot path: for models of the plan, and for apps."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from secrets import token_hex

from starlette.types import Receive, Scope, Send

from omnibus.errors import BadRequest, Fatal, NotFound, OmnibusError
from omnibus.metrics import GATEWAY
from omnibus.settings import GatewaySettings
from services.gateway.apps.chats import Chats
from services.gateway.chat import Chat
from services.gateway.exchange import ClientLeft, Exchange, problem, while_connected
from services.gateway.openai import dialect
from services.gateway.openai.requests import parse_chat, read_body
from services.gateway.openai.schema import ChatRequest

log = logging.getLogger(__name__)

_DIALECT = dialect.HEADER.encode()

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
        apps: Chats | None = None,
        draw: Draw | None = None,
        translate: Translate | None = None,
    ) -> None:
        self._settings = settings
        self._chat = chat
        self._apps = apps
        self._draw = draw
        self._translate = translate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        model = ""
        try:
            headers = dict(scope["headers"])
            length = headers.get(b"content-length", b"")
            declared = int(length) if length.isdigit() else None
            body = await read_body(chunks(receive), self._settings.max_body, declared)
            named = headers.get(_DIALECT)
            if named is None or self._translate is None:
                wanted = parse_chat(body)
            else:
                wanted = self._translate(named.decode("latin-1"), body)
            model = wanted.model
            if wanted.draws and self._draw is not None:
                await self._draw(wanted, scope, receive, send)
                return
            pinned = headers.get(b"x-omnibus-path", b"").decode("latin-1")
            exchange = await self._start(scope, receive, wanted, pinned)
        except ClientLeft:
            GATEWAY.outcome(model, "cancelled").inc()
            return
        except OmnibusError as error:
            GATEWAY.outcome("" if isinstance(error, NotFound) else model, error.code).inc()
            await problem(send, error, f"req-{token_hex(8)}")
            return
        except Exception:  # a defect of ours: the client gets an error in the usual shape, the log the rest
            id = f"req-{token_hex(8)}"
            log.exception("%s failed", id)
            GATEWAY.outcome(model, Fatal.code).inc()
            await problem(send, Fatal("internal error: the gateway's log has more under this request id"), id)
            return
        await exchange.answer(scope, receive, send)

    async def _start(self, scope: Scope, receive: Receive, wanted: ChatRequest, pinned: str) -> Exchange:
        app = self._apps.app(wanted.model) if self._apps is not None else ""
        if self._apps is None or not app:
            run, output = await self._chat.start(wanted, pinned)
            return Exchange(run, wanted, output, keeper=self._chat.spoken)
        run, output, call = await while_connected(scope, receive, self._apps.start(app, wanted, pinned))
        return Exchange(run, wanted, output, call.close, self._chat.spoken)


async def chunks(receive: Receive) -> AsyncIterator[bytes]:
    """The body as it arrives. Raises ``BadRequest`` when the client leaves in the middle."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadRequest("the client left before its request was complete")
        if body := message.get("body", b""):
            yield body
        if not message.get("more_body"):
            return
