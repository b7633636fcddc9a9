"""The life of an HTTP request, whichever route answers it.

read      its body, within the route's limit
answer    the route's work, for as long as the client waits: what it raises is the answer
count     its outcome, once
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable
from typing import Any, NamedTuple

from starlette.types import Receive, Scope, Send

from omnibus.errors import Fatal, NotFound, OmnibusError
from omnibus.metrics import GATEWAY
from omnibus.settings import GatewaySettings
from services.gateway.http.connection import ON_LEFT
from services.gateway.http.response import JSON, ResponseWriter
from services.gateway.openai.parse import read_body
from services.gateway.pricing.headers import PriceOptions, read_price_options, refuse_price_options
from services.gateway.pricing.quotes import QuoteReady

log = logging.getLogger(__name__)


class PostRequest(NamedTuple):
    """An HTTP request: its body, its headers with names in lower case, and what else is known of it."""

    body: bytes
    headers: dict[bytes, bytes]
    scope: Scope

    @property
    def content_type(self) -> str:
        """The content type of the body."""
        return self.headers.get(b"content-type", b"").decode("latin-1")

    @property
    def pinned(self) -> str:
        """The path that the client asks for."""
        return self.headers.get(b"x-omnibus-path", b"").decode("latin-1")

    @property
    def prices(self) -> PriceOptions:
        """The client's wishes about prices. Raises ``BadRequest``."""
        return read_price_options(self.headers)

    def base_url(self, settings: GatewaySettings) -> str:
        """The beginning of URLs of this gateway, as the client sees it."""
        host = self.headers.get(b"host", b"localhost").decode("latin-1")
        return settings.public_url.rstrip("/") or f"{self.scope.get('scheme', 'http')}://{host}"


class PostRoute(ABC):
    """Answers requests of one path that have a body. A client that leaves cancels what still runs."""

    #: Whether it has its requests priced before they run; others refuse what they would not obey.
    reads_prices = False

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings

    @abstractmethod
    def handle_request(self, asked: PostRequest, sending: ResponseWriter) -> Awaitable[None]:
        """Answer one request. Raises ``OmnibusError``."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = ResponseWriter(send)
        async with RequestOutcome(sending) as outcome:
            asked = await read_request(scope, receive, self._settings.max_body)
            if not self.reads_prices:
                refuse_price_options(asked.headers)
            async with ConnectedClient(scope, receive):
                await self.handle_request(asked, sending)
        GATEWAY.request_counter(sending.model, outcome.code).inc()


class RequestOutcome:
    """Outcome of the work inside, which answers a request: what it raises is the answer, and goes no further.

    ``code`` is the one under which the request counts: a client that left is no fault of the gateway.
    """

    def __init__(self, sending: ResponseWriter) -> None:
        self.code = "ok"
        self._sending = sending

    async def __aenter__(self) -> "RequestOutcome":
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        sending = self._sending
        ended = sending.run.status if sending.run is not None else ""
        if isinstance(error, QuoteReady):
            sending.run = None  # nothing ran
            await sending.send_body(JSON, error.body)
        elif isinstance(error, ClientLeft):
            self.code = "ok" if ended == "done" else "cancelled"
        elif isinstance(error, OmnibusError):
            self.code = error.code if ended != "cancelled" else "cancelled"
            if isinstance(error, NotFound):
                sending.model = ""
            await sending.send_error(error)
        else:  # a defect of ours: the client gets an error in the usual shape, the log the rest
            self.code = Fatal.code
            log.error("%s failed", sending.id, exc_info=error)
            await sending.send_error(Fatal("internal error: the gateway's log has more under this request id"))
        return True


async def read_request(scope: Scope, receive: Receive, limit: int) -> PostRequest:
    """Read a request whose body has at most ``limit`` bytes. Raises ``ClientLeft``, and as ``read_body``."""
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"")
    body = await read_body(_body_chunks(receive), limit, int(length) if length.isdigit() else None)
    return PostRequest(body, headers, scope)


class ClientLeft(Exception):
    """Nobody waits for the answer any more."""


async def _body_chunks(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the body as it arrives. Raises ``ClientLeft`` in the middle of it."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        if body := message.get("body", b""):
            yield body
        if not message.get("more_body"):
            return


class ConnectedClient:
    """The client for whom the work inside is done: when it leaves, the work is cancelled. Raises ``ClientLeft``."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._scope = scope
        self._receive = receive
        self._left = False
        self._watch: asyncio.Task[None] | None = None
        self._task: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        self._cancelled = self._task.cancelling() if self._task is not None else 0
        if ON_LEFT in self._scope:
            self._scope[ON_LEFT] = self._leave
        else:
            self._watch = asyncio.get_running_loop().create_task(self._watch_connection())

    async def __aexit__(self, kind: type[BaseException] | None, error: Any, traceback: Any) -> None:
        if self._watch is not None:
            self._watch.cancel()
        else:
            self._scope[ON_LEFT] = None
        task, self._task = self._task, None
        if self._left and task is not None:
            others = task.uncancel() > self._cancelled  # who want the task to end as well
            if kind is asyncio.CancelledError and not others:
                raise ClientLeft from None

    async def _watch_connection(self) -> None:
        """For servers that do not call back."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        if self._task is not None and not self._left:
            self._left = True
            self._task.cancel()
