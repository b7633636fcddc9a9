"""Lifecycle of an HTTP request and of a WebSocket, for all routes.

A route gets the body up to its limit, and runs while the client is connected. An exception becomes the response, and
each outcome is counted once. Routes for plain handlers return a response; their query parameters have errors that name
them. A rejected handshake of a WebSocket gets a normal HTTP response, and messages have limits in both directions.

All layers of the gateway report errors in OpenAI's format: authentication, limits, routes and streams. ``DialectEdge``
converts them on the paths of a ``Dialect``, so that no layer depends on the path.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from omnibus.errors import BadRequest, NotFound
from omnibus.metrics import GATEWAY
from omnibus.settings import GatewaySettings
from omnibus_gateway.http.connection import ON_LEFT
from omnibus_gateway.http.failures import FAILURE, Failure, find_named_model
from omnibus_gateway.http.response import JSON, Headers, ResponseWriter
from omnibus_gateway.openai.errors import client_error
from omnibus_gateway.openai.parse import read_body
from omnibus_gateway.pricing.meter import PriceOptions, read_price_options, refuse_price_options
from omnibus_gateway.pricing.quotes import QuoteReady


class PostRequest(NamedTuple):
    """HTTP request: its body, its headers with lower-case names, and its scope."""

    body: bytes
    headers: dict[bytes, bytes]
    scope: Scope

    @property
    def content_type(self) -> str:
        """The content type of the body."""
        return self.headers.get(b"content-type", b"").decode("latin-1")

    @property
    def pinned(self) -> str:
        """Path that the client requests."""
        return self.headers.get(b"x-omnibus-path", b"").decode("latin-1")

    @property
    def prices(self) -> PriceOptions:
        """Price options of the client. Raises ``BadRequest``."""
        return read_price_options(self.headers)

    def base_url(self, settings: GatewaySettings) -> str:
        """Return the prefix of this gateway's URLs, as the client sees it."""
        host = self.headers.get(b"host", b"localhost").decode("latin-1")
        return settings.public_url.rstrip("/") or f"{self.scope.get('scheme', 'http')}://{host}"


class PostRoute(ABC):
    """Answers requests with a body on one path. When the client disconnects, its work is cancelled."""

    #: True if the route applies price options; other routes reject them.
    reads_prices = False

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings

    @abstractmethod
    def handle_request(self, post: PostRequest, sending: ResponseWriter) -> Awaitable[None]:
        """Answer one request. Raises ``OmnibusError``."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = ResponseWriter(send)
        async with RequestOutcome(sending) as outcome:
            post = outcome.post = await read_request(scope, receive, self._settings.max_body)
            if not self.reads_prices:
                refuse_price_options(post.headers)
            async with ConnectedClient(scope, receive):
                await self.handle_request(post, sending)
        GATEWAY.request_counter(sending.model, outcome.code).inc()


class RequestOutcome:
    """Context of the work that answers a request: exceptions become the response, and do not propagate.

    ``code`` is the outcome for metrics; a disconnect of the client is not an error of the gateway.
    """

    def __init__(self, sending: ResponseWriter) -> None:
        self.code = "ok"
        self.post: PostRequest | None = None  # once it was read
        self._sending = sending

    async def __aenter__(self) -> "RequestOutcome":
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        sending = self._sending
        final_status = sending.run.status if sending.run is not None else ""
        if isinstance(error, QuoteReady):
            sending.run = None  # the request did not run
            await sending.send_body(JSON, error.body)
        elif isinstance(error, ClientLeft):
            self.code = "ok" if final_status == "done" else "cancelled"
        else:
            api_error = client_error(error, sending.id)
            self.code = api_error.code if final_status != "cancelled" or api_error is not error else "cancelled"
            if self.post is not None:
                model = sending.model or find_named_model(self.post.body)
                self.post.scope[FAILURE] = Failure(api_error.to_problem(), api_error.status, model, sending.ran)
            if isinstance(error, NotFound):
                sending.model = ""
            await sending.send_error(api_error)
        return True


async def read_request(scope: Scope, receive: Receive, limit: int) -> PostRequest:
    """Read a request with a body of at most ``limit`` bytes. Raises ``ClientLeft``, and as ``read_body``."""
    headers = dict(scope["headers"])
    length = headers.get(b"content-length", b"")
    body = await read_body(_body_chunks(receive), limit, int(length) if length.isdigit() else None)
    return PostRequest(body, headers, scope)


class ClientLeft(Exception):
    """Disconnect of the client before its answer."""


async def _body_chunks(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the body as it arrives. Raises ``ClientLeft`` if the client disconnects before its end."""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        if body := message.get("body", b""):
            yield body
        if not message.get("more_body"):
            return


class ConnectedClient:
    """Context of work for a client: a disconnect cancels it. Raises ``ClientLeft``."""

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
            is_cancelled = task.uncancel() > self._cancelled  # other cancellations of the task
            if kind is asyncio.CancelledError and not is_cancelled:
                raise ClientLeft from None

    async def _watch_connection(self) -> None:
        """Wait for the disconnect, on servers without a callback for it."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        if self._task is not None and not self._left:
            self._left = True
            self._task.cancel()


Handler = Callable[[Request], Awaitable[Response]]
_encode = msgspec.json.Encoder().encode


def add_routes(app: FastAPI, routes: Mapping[str, Mapping[str, Handler]]) -> None:
    """Add the handlers of each path, by method, to ``app``."""
    for path, handlers in routes.items():
        app.add_route(path, _HandlerRoute(handlers), methods=list(handlers), include_in_schema=False)  # type: ignore[arg-type]


class _HandlerRoute:
    """Route of one path. Its requests are not counted by model, because they have none."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = ResponseWriter(send)
        async with RequestOutcome(sending):
            handle = self._handlers["GET" if scope["method"] == "HEAD" else scope["method"]]
            response = await handle(Request(scope, receive))
            response.headers["x-request-id"] = sending.id
            sending.begun = (response.media_type or "none").encode()
            await response(scope, receive, send)


def json_response(body: Any, status: int = 200) -> Response:
    """Encode ``body``, a struct or plain values, as a JSON response."""
    return Response(_encode(body), status, media_type="application/json")


_MAX_QUOTED_CHARS = 80
_MAX_DIGITS = 19


def parse_query(request: Request, *names: str) -> dict[str, str]:
    """Return the query parameters of ``request``. Raises ``BadRequest`` for one not in ``names``."""
    query = dict(request.query_params)
    unknown = sorted(set(query) - set(names))
    if unknown:
        name = unknown[0][:_MAX_QUOTED_CHARS]
        raise BadRequest(f"unknown parameter {name!r}: use {', '.join(names)}", param=name)
    return query


def parse_number(query: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    """Parse the whole number ``name`` of ``query``. Raises ``BadRequest``."""
    text = query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS and least <= int(text) <= most):
        raise BadRequest(f"{name} must be a whole number from {least} to {most}", param=name)
    return int(text)


#: Close codes (RFC 6455): clients reconnect after the last two, and not after the others.
NORMAL, POLICY, SERVER_ERROR, GOING_AWAY, RESTART = 1000, 1008, 1011, 1001, 1012
#: Seconds for a client to answer a ping, and for the close of a connection.
PING_SECONDS, CLOSE_SECONDS = 20.0, 5.0
#: Maximum bytes of a message.
MAX_MESSAGE_BYTES = 16 << 20
#: Subprotocol under which a browser, which cannot set headers, sends a key.
KEY_PROTOCOL = "openai-insecure-api-key."


class GatewayWebSocketProtocol(WebSocketsSansIOProtocol):
    """Connection after its upgrade. Invalid handshakes and stalled connections are closed in time."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.loop.call_later(CLOSE_SECONDS, self.transport.abort)  # pending writes would keep the connection open

    async def send(self, message: Any) -> None:
        try:
            await super().send(message)
        except RuntimeError:
            if self.close_sent and message["type"] == "websocket.send":
                # No pong, or an invalid frame: the server has closed it before the application knows.
                raise ClientDisconnected from None
            raise
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # otherwise uvicorn would report the end of the application as an error

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        self.loop.call_later(CLOSE_SECONDS, self.transport.abort)  # no effect if it is already closed


class WebSocketConnection:
    """One client connection, as a route uses it."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.closed_code = 0  # close code of the client

    async def accept(self, subprotocol: str | None) -> None:
        """Complete the handshake."""
        await self._receive()
        await self._send({"type": "websocket.accept", "subprotocol": subprotocol, "headers": []})

    async def send_text(self, text: str) -> None:
        """Send a message when the client has room for it. Raises ``ClientDisconnected``."""
        await self._send({"type": "websocket.send", "text": text})

    async def receive_text(self) -> str | None:
        """Return the next message; None after a disconnect. Raises ``BadRequest`` for a binary one."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            self.closed_code = int(message.get("code") or 0)
            return None
        text = message.get("text")
        if text is None:
            raise BadRequest("Events must be JSON in text messages, not in binary ones.")
        return str(text)

    async def close(self, code: int, reason: str) -> None:
        """Close it, unless the client has closed it or does not read."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._send({"type": "websocket.close", "code": code, "reason": reason})
        except (ClientDisconnected, RuntimeError, TimeoutError):
            pass


def rejecting_send(scope: Scope, send: Send) -> Send:
    """Return a ``send`` that also rejects WebSocket handshakes."""
    if scope["type"] != "websocket":
        return send

    def send_rejection(message: Message) -> Any:
        return send({**message, "type": f"websocket.{message['type']}"})

    return send_rejection


def sent_authorization(scope: Scope) -> str:
    """Return the ``Authorization`` header; in a handshake, also the key in a browser's subprotocol."""
    header = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    if header or scope["type"] != "websocket":
        return header
    return next((f"Bearer {key}" for key in _protocol_keys(scope)), "")


def _protocol_keys(scope: Scope) -> list[str]:
    return [each.removeprefix(KEY_PROTOCOL) for each in scope["subprotocols"] if each.startswith(KEY_PROTOCOL)]


_CLIENT_ERROR = 400
_EVENT, _DATA = b'data: {"error":', b"data: "


class Dialect(Protocol):
    """An API with its own headers and errors."""

    prefix: str  # of its paths; ends with a slash

    def request_headers(self, headers: Headers) -> Headers:
        """Convert the headers of a request."""

    def response_headers(self, headers: Headers) -> Headers:
        """Convert the headers of a response."""

    def convert_error(self, body: bytes, status: int) -> bytes:
        """Convert an error in OpenAI's format. In the middle of a stream, ``status`` is 0."""

    def frame_error(self, body: bytes) -> bytes:
        """Return the part of a stream with the converted error ``body``."""


class DialectEdge:
    """Wraps ``application``: requests on the paths of ``dialects`` get their errors."""

    def __init__(self, application: ASGIApp, *dialects: Dialect) -> None:
        self._application = application
        self._dialects = dialects

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = f"{scope['path']}/"
            for dialect in self._dialects:
                if path.startswith(dialect.prefix):
                    scope["headers"] = dialect.request_headers(scope["headers"])
                    send = _DialectResponse(dialect, send).send
                    break
        await self._application(scope, receive, send)


class _DialectResponse:
    """One response, whose errors are converted."""

    def __init__(self, dialect: Dialect, send: Send) -> None:
        self._dialect = dialect
        self._send = send
        self._error_head: dict[str, Any] | None = None  # sent with the error's body

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = self._dialect.response_headers(message["headers"])
            if message["status"] >= _CLIENT_ERROR:
                self._error_head = message
                return
        elif self._error_head is not None:
            head, self._error_head = self._error_head, None
            message["body"] = self._dialect.convert_error(message.get("body", b""), head["status"])
            head["headers"] = [each for each in head["headers"] if each[0] != b"content-length"]
            head["headers"].append((b"content-length", b"%d" % len(message["body"])))
            await self._send(head)
        elif message.get("body", b"").startswith(_EVENT):
            error = self._dialect.convert_error(message["body"].removeprefix(_DATA), 0)
            message["body"] = self._dialect.frame_error(error)
        await self._send(message)
