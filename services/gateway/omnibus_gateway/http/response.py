"""Responses: over ASGI, or written directly to the connection, and the open requests of a gateway.

A stopping gateway ends them in three steps:

begin_stop:    readiness is off. A new request gets a typed 503 with Retry-After, and its connection closes.
wait_finished: open requests have time to finish.
end_all:       the rest end with the same error, as JSON or as an event of their stream, never as a bare 500.

Plain requests are answered directly, without a task and an ASGI scope. The event loop callback that reads their bytes
also starts the answer: ``DirectRoute.accepts_head`` checks the head, ``DirectRoute.begin`` the rest. All other requests
go to the application unchanged.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from http import HTTPStatus
from secrets import token_hex
from typing import Any, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from omnibus.errors import GatewayStopping, OmnibusError, clear_tracebacks
from omnibus.metrics import GATEWAY
from omnibus_gateway.http.failures import FAILURE, FailureLog, Handshake
from omnibus_gateway.openai.errors import error_body, error_headers, status_of
from omnibus_gateway.request.request import ClientRequest

log = logging.getLogger(__name__)

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"
_CLIENT_ERROR = 400

#: Header names in lower case, with their values.
Headers = list[tuple[bytes, bytes]]


class ResponseWriter:
    """Response to one HTTP request. ``model`` is the model of the plan, if known, ``run`` the request, if any."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.model = ""
        self.run: ClientRequest | None = None
        #: Content type once bytes were sent, so that the status is final; empty before.
        self.begun = b""
        self._id = ""

    @property
    def id(self) -> str:
        """Id in the response: that of the run, if there is one."""
        if self.run is not None:
            return self.run.id
        self._id = self._id or new_request_id()
        return self._id

    @property
    def ran(self) -> bool:
        """Return whether the request became an invocation."""
        return self.run is not None and bool(self.run.segments)

    async def send_body(self, kind: bytes, body: bytes) -> None:
        """Send a complete response."""
        await send_response(self.send, 200, kind, body, run_headers(self.run))

    async def send_stream(
        self,
        parts: AsyncGenerator[bytes, None] | AsyncIterator[bytes],
        kind: bytes = EVENTS,
        extra: Headers | None = None,
        last: bytes = b"",
    ) -> None:
        """Send ``parts`` as they arrive, then ``last``. An error before the first part is a plain error."""
        send = self.send
        async with aclosing(parts):  # type: ignore[type-var]
            first = await anext(parts, b"")
            headers = [(b"content-type", kind), (b"cache-control", b"no-cache"), *run_headers(self.run), *(extra or ())]
            self.begun = kind
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            if first:
                await send({"type": "http.response.body", "body": first, "more_body": True})
            async for part in parts:
                if part:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        if self.run is not None:
            self.run.end("done")
        await send({"type": "http.response.body", "body": last})

    async def send_error(self, error: OmnibusError) -> None:
        """Send an error; a byte stream is cut off, so that clients see that it is incomplete."""
        if not self.begun:
            await send_error(self.send, error, self.id)
        elif self.begun == EVENTS:
            frame = b"data: %b\n\n" % error_body(error, self.id)
            await self.send({"type": "http.response.body", "body": frame, "more_body": True})
            await self.send({"type": "http.response.body", "body": b""})
        clear_tracebacks(error)


def run_headers(run: ClientRequest | None) -> Headers:
    """Return headers for diagnosis: invocation, path and plan epoch."""
    if run is None:
        return []
    return [
        (b"x-request-id", run.id.encode()),
        (b"x-omnibus-path", run.path.encode()),
        (b"x-omnibus-epoch", b"%d" % run.epoch),
    ]


async def as_events(bodies: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """Yield events whose data are ``bodies``, JSON on one line; an empty one becomes a keep-alive comment."""
    async with aclosing(bodies):
        async for body in bodies:
            yield b"data: %b\n\n" % body if body else b": still here\n\n"


async def send_response(send: Send, status: int, kind: bytes, body: bytes, extra: Headers) -> None:
    """Send a complete response."""
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: OmnibusError, id: str = "", extra: Headers | None = None) -> None:
    """Send an error in OpenAI's format, and clear its traceback."""
    id = id or new_request_id()
    headers = [(key.lower().encode(), value.encode()) for key, value in error_headers(error).items()]
    headers += [(b"x-request-id", id.encode()), *(extra or ())]
    await send_response(send, status_of(error), JSON, error_body(error, id), headers)
    clear_tracebacks(error)


async def refuse_request(send: Send, error: OmnibusError, extra: Headers | None = None) -> None:
    """Send ``error`` for a request that reaches no route, and count it."""
    GATEWAY.request_counter("", error.code).inc()
    await send_error(send, error, extra=extra)


def new_request_id() -> str:
    """Return an id for the response to a request that does not become an invocation."""
    return f"req-{token_hex(8)}"


#: Paths of the liveness probe: ours, and its names in other servers.
LIVENESS = ("/health", "/healthz", "/livez", "/ping")
#: Seconds for sending the last responses.
FINAL_RESPONSES_SECONDS = 1.0
#: Paths of probes, which are always answered; ``/readyz`` reports that the gateway is stopping.
PROBES = frozenset({*LIVENESS, "/readyz", "/metrics", "/version"})


def stopping_error() -> GatewayStopping:
    """Create the error for requests that a stopping gateway does not answer."""
    return GatewayStopping("this gateway is stopping: send the request again, another gateway will answer it")


class OpenResponse(Protocol):
    """Response in progress."""

    def cancel(self) -> None:
        """End it with an error: the time to finish is over."""


class OpenRequests:
    """Tracks requests from their first byte to the end of their response. ``failures`` gets those with an error."""

    def __init__(self, failures: FailureLog | None = None) -> None:
        self.stopping = False
        self.failures = failures if failures is not None else FailureLog()
        self._open: set[OpenResponse] = set()
        self._cancelled = False
        self._emptied = asyncio.Event()

    def track_requests(self, application: ASGIApp) -> ASGIApp:
        """Wrap ``application`` to track its requests."""

        async def tracked_application(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "websocket":  # they end on their own
                await application(scope, receive, Handshake(self.failures, scope, send).send)
            elif scope["type"] != "http" or scope["path"] in PROBES:
                await application(scope, receive, send)
            elif self.stopping:
                await _send_stopping(send)
            else:
                await self._track_request(application, scope, receive, send)

        return tracked_application

    async def _track_request(self, application: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        response = TrackedResponse(send)
        response.scope, response.failures = scope, self.failures
        self.add(response)
        try:
            await application(scope, receive, response.send)
        except asyncio.CancelledError:
            if not self._cancelled:
                raise
            await response.end_with_error()
        finally:
            self.discard(response)

    def add(self, response: OpenResponse) -> None:
        """Add a response that has begun; ``discard`` it at its end."""
        self._open.add(response)

    def discard(self, response: OpenResponse) -> None:
        """Remove a response that has ended."""
        self._open.discard(response)
        if not self._open:
            self._emptied.set()

    # The stop

    def begin_stop(self) -> None:
        """Reject new requests."""
        self.stopping = True

    async def wait_finished(self, seconds: float) -> None:
        """Wait up to ``seconds`` until no request is open."""
        self._emptied.clear()
        if self._open:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._emptied.wait()

    async def end_all(self, fail_runs: Callable[[OmnibusError], None]) -> None:
        """End open requests with ``GatewayStopping``: through their run if they have one, else by cancellation."""
        if not self._open:
            return
        log.warning("%d requests did not finish in time and end with an error", len(self._open))
        fail_runs(stopping_error())
        await self.wait_finished(FINAL_RESPONSES_SECONDS)
        self._cancelled = True
        for response in list(self._open):  # a copy: some end immediately
            response.cancel()
        await self.wait_finished(FINAL_RESPONSES_SECONDS)


class TrackedResponse:
    """Response whose progress is known, so that it can end with ``error``."""

    def __init__(self, send: Send, error: Callable[[], OmnibusError] = stopping_error) -> None:
        self.is_cancelled = False
        self._error = error
        self._send = send
        self._task = asyncio.current_task()
        self._head: dict[bytes, bytes] | None = None
        self._over = False
        self._status = 200
        #: Gets the response to the request ``scope`` if it is an error.
        self.failures: FailureLog | None = None
        self.scope: Scope = {}

    def send(self, message: Any) -> Any:
        """Send a message. A plain function saves a stack frame per chunk of a stream."""
        if message["type"] == "http.response.start":
            self._head = dict(message["headers"])
            self._status = message["status"]
        elif not message.get("more_body"):
            self._over = True
            if self._status >= _CLIENT_ERROR or FAILURE in self.scope:
                self._add_failure(message.get("body", b""))
        return self._send(message)

    def _add_failure(self, body: bytes) -> None:
        if self.failures is not None:
            self.failures.add_response(self.scope, self._status, self._request_id, body)

    @property
    def _request_id(self) -> str:
        """Id in the headers of the response."""
        return (self._head or {}).get(b"x-request-id", b"").decode("latin-1")

    def cancel(self) -> None:
        """Cancel the task that makes it, which then calls ``end_with_error``."""
        if self._task is not None:
            self.is_cancelled = True
            self._task.cancel()

    async def end_with_error(self) -> None:
        """End it with an error; a byte stream is cut off, so that clients see that it is incomplete."""
        if self._task is not None:
            self._task.uncancel()
        if self._over:
            return
        if self._head is None:
            await refuse_request(self.send, self._error(), [(b"connection", b"close")])
        elif self._head.get(b"content-type") == EVENTS:
            frame = b"data: %b\n\n" % error_body(self._error(), self._request_id)
            await self.send({"type": "http.response.body", "body": frame})


async def _send_stopping(send: Send) -> None:
    await refuse_request(send, stopping_error(), [(b"connection", b"close")])


#: Key of the scope for a callback that the connection calls when the client disconnects.
ON_LEFT = "omnibus.on_left"
#: Key of the scope for the parsed body of a request that a direct route declined, so that it is parsed once.
PARSED_BODY = "omnibus.parsed_body"
#: Maximum bytes of a body for a direct answer; so many do not count against any budget.
MAX_DIRECT_BYTES = 64 << 10
#: Headers that do not affect the response. Requests with any other header go to the application.
_PLAIN_HEADERS = frozenset(
    {b"host", b"accept", b"accept-encoding", b"accept-language", b"authorization", b"connection", b"content-length",
     b"content-type", b"user-agent"}
)  # fmt: skip
#: Prefix of headers of OpenAI's clients, which describe their platform.
_CLIENT_HEADERS = b"x-stainless-"


class DirectConnection(Protocol):
    """Connection of a request, as its direct response uses it."""

    transport: Any
    flow: Any
    scope: Any
    server_state: Any
    cycle: Any
    #: The direct response in progress; further requests wait for it.
    answering: "DirectResponse | None"

    @property
    def keeps_alive(self) -> bool: ...

    def on_response_complete(self) -> None: ...


class DirectRoute(ABC):
    """Answers plain requests to one path. ``allows`` checks the host name of a request."""

    def __init__(self, path: str, open_requests: OpenRequests, allows: Callable[[bytes], bool] | None = None) -> None:
        self.open_requests = open_requests
        self._url = path.encode()
        self._allows = allows

    def accepts_head(self, method: bytes, url: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Return True if a request with this head may be answered here. ``headers`` have lower-case names."""
        if url != self._url or method != b"POST" or self.open_requests.stopping:
            return False
        nbytes = 0
        for name, value in headers:
            if name not in _PLAIN_HEADERS and not name.startswith(_CLIENT_HEADERS):
                return False
            if name == b"content-length":
                nbytes = int(value) if value.isdigit() else 0
            elif name == b"host" and self._allows is not None and value and not self._allows(value):
                return False
        return 0 < nbytes <= MAX_DIRECT_BYTES

    @abstractmethod
    def begin(self, connection: DirectConnection, body: bytes) -> bool:
        """Start to answer a request with ``body``; False if it is not plain. Never raises."""


class _NoEvent:
    """Event without waiters."""

    def set(self) -> None: ...


_NO_EVENT = _NoEvent()


class DirectResponse(ABC):
    """One response from its first to its last byte; uvicorn calls this object a cycle."""

    message_event = _NO_EVENT
    scope: Mapping[str, Any] = {}

    def __init__(self, route: DirectRoute, connection: DirectConnection) -> None:
        self.response_complete = self.disconnected = False
        self.keep_alive = connection.keeps_alive
        self.connection = connection
        connection.cycle = connection.answering = self
        #: Content type once bytes were sent, so that the status is final; empty before.
        self.begun = b""
        self._open = route.open_requests
        self._open.add(self)

    @property
    @abstractmethod
    def id(self) -> str:
        """Id in the response."""

    def leave(self) -> None:
        """Handle the disconnect of the client."""
        if not self.response_complete:
            self.disconnected = True
            self._open.discard(self)
            self.on_left()

    @abstractmethod
    def on_left(self) -> None:
        """Cancel the work for the response: the client has disconnected."""

    @abstractmethod
    def on_writable(self) -> None:
        """Send pending output: the client is ready to read again."""

    # For the stop of the gateway, see ``OpenRequests``

    def cancel(self) -> None:
        """End it with an error if it is not complete: the gateway stops."""
        if not self.response_complete:
            self.send_error(stopping_error())
            self.on_left()

    # Output

    @property
    def is_write_paused(self) -> bool:
        """True while the client reads more slowly than the response is written."""
        return bool(self.connection.flow.write_paused)

    def send_body(self, kind: bytes, body: bytes, extra: Headers, status: int = 200) -> None:
        """Send a complete response."""
        head = self._encode_head(status, [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *extra])
        self._write(head + body)
        self.complete()

    def send_events(self, events: bytes, extra: Callable[[], Headers], last: bool = False) -> None:
        """Send the next events of a stream; with ``last``, end it. ``extra`` returns headers for the first."""
        data = b"%x\r\n%b\r\n" % (len(events), events) if events else b""
        if last:
            data += b"0\r\n\r\n"
        if not self.begun:
            self.begun = EVENTS
            fields = [(b"content-type", EVENTS), (b"cache-control", b"no-cache"), *extra()]
            data = self._encode_head(200, fields, b"transfer-encoding: chunked\r\n") + data
        self._write(data)
        if last:
            self.complete()

    def send_error(self, error: OmnibusError) -> None:
        """Send an error: as status and body, or as an event if the stream has begun."""
        if self.begun:
            self.send_events(b"data: %b\n\n" % error_body(error, self.id), list, last=True)
        else:
            headers = [(key.lower().encode(), value.encode()) for key, value in error_headers(error).items()]
            headers.append((b"x-request-id", self.id.encode()))
            self.send_body(JSON, error_body(error, self.id), headers, status_of(error))
        clear_tracebacks(error)

    def complete(self) -> None:
        """Mark the response as complete."""
        self.response_complete = True
        self.connection.answering = None
        self._open.discard(self)
        if not self.keep_alive:
            self.connection.transport.close()
        self.connection.on_response_complete()

    def _write(self, data: bytes) -> None:
        if not self.disconnected:
            self.connection.transport.write_now(data)

    def _encode_head(self, status: int, headers: Headers, framing: bytes = b"") -> bytes:
        lines = [b"%b: %b\r\n" % field for field in headers]
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        defaults = _default_lines(self.connection.server_state)
        return b"".join((_STATUS_LINES[status], defaults, *lines, framing, b"\r\n"))


def _default_lines(server_state: Any) -> bytes:
    """Encode the default headers. The result is cached: uvicorn replaces the list once a second."""
    defaults = server_state.default_headers
    if defaults is not _lines[0]:
        _lines[:] = defaults, b"".join([b"%b: %b\r\n" % field for field in defaults])
    return bytes(_lines[1])


_lines: list[Any] = [None, b""]


_STATUS_LINES = {int(status): f"HTTP/1.1 {status} {status.phrase}\r\n".encode() for status in HTTPStatus}
