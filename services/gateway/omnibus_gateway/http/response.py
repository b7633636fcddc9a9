"""One response over ASGI: a body, or a stream that reports errors as frames after its beginning.

Responses whose content is read in parts, with ranges (RFC 9110, section 14).

Open HTTP requests of a gateway, and their end when it stops.

begin_stop:    readiness is off. A new request gets a typed 503 with Retry-After, and its connection closes.
wait_finished: open requests have time to finish.
end_all:       the rest end with the same error, as JSON or as an event of their stream, never as a bare 500.
"""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from secrets import token_hex
from typing import Any, NamedTuple, Protocol

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from omnibus.errors import GatewayStopping, OmnibusError, clear_tracebacks
from omnibus.metrics import GATEWAY
from omnibus_gateway.openai.errors import error_body, error_headers, status_of
from omnibus_gateway.request.request import ClientRequest

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"

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
        self._id = self._id or _new_id()
        return self._id

    async def send_body(self, kind: bytes, body: bytes) -> None:
        """Send a complete response."""
        await send_response(self.send, 200, kind, body, self._run_headers())

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
            headers = [(b"content-type", kind), (b"cache-control", b"no-cache"), *self._run_headers(), *(extra or ())]
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

    def _run_headers(self) -> Headers:
        return run_headers(self.run)


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
    id = id or _new_id()
    headers = [(key.lower().encode(), value.encode()) for key, value in error_headers(error).items()]
    headers += [(b"x-request-id", id.encode()), *(extra or ())]
    await send_response(send, status_of(error), JSON, error_body(error, id), headers)
    clear_tracebacks(error)


async def refuse_request(send: Send, error: OmnibusError, extra: Headers | None = None) -> None:
    """Send ``error`` for a request that reaches no route, and count it."""
    GATEWAY.request_counter("", error.code).inc()
    await send_error(send, error, extra=extra)


def _new_id() -> str:
    return f"req-{token_hex(8)}"


#: Bytes per read, which is the memory per client.
PART_BYTES = 1 << 20
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class Content(NamedTuple):
    """Immutable bytes. ``read`` returns those from one offset up to, but excluding, another."""

    nbytes: int
    etag: str
    read: Callable[[int, int], Awaitable[bytes]]


async def content_response(request: Request, content: Content, mime: str, headers: Mapping[str, str]) -> Response:
    """Respond with ``content``, or with the range in ``request``. Raises as ``content.read``.

    Several ranges and invalid ones are ignored: the response has the whole content.
    """
    response_headers = {**headers, "accept-ranges": "bytes", "etag": content.etag}
    byte_range = find_range(request.headers, content)
    if byte_range is None:
        begin, end, status = 0, content.nbytes, 200
    elif byte_range[0] >= byte_range[1]:
        return Response(status_code=416, headers={**response_headers, "content-range": f"bytes */{content.nbytes}"})
    else:
        (begin, end), status = byte_range, 206
        response_headers["content-range"] = f"bytes {begin}-{end - 1}/{content.nbytes}"
    response_headers["content-length"] = str(end - begin)
    if request.method == "HEAD":
        return Response(status_code=status, headers=response_headers, media_type=mime)
    first = await content.read(begin, min(end, begin + PART_BYTES))  # errors must occur before the response begins
    return StreamingResponse(_read_parts(content, first, begin, end), status, response_headers, mime)


def find_range(headers: Mapping[str, str], content: Content) -> tuple[int, int] | None:
    """Return the range in ``headers``, its end excluded; None for all, empty if unsatisfiable."""
    match = _RANGE.fullmatch(headers.get("range", "").strip())
    if match is None or not (match[1] or match[2]) or headers.get("if-range", content.etag) != content.etag:
        return None
    size = content.nbytes
    if not match[1]:
        return max(0, size - int(match[2])), size
    begin, last = int(match[1]), int(match[2]) if match[2] else size - 1
    if last < begin and match[2]:
        return None
    return begin, min(last + 1, size)


async def _read_parts(content: Content, first: bytes, begin: int, end: int) -> AsyncIterator[bytes]:
    yield first
    for at in range(begin + PART_BYTES, end, PART_BYTES):
        yield await content.read(at, min(end, at + PART_BYTES))


log = logging.getLogger(__name__)

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
    """Tracks requests from their first byte to the end of their response."""

    def __init__(self) -> None:
        self.stopping = False
        self._open: set[OpenResponse] = set()
        self._cancelled = False
        self._emptied = asyncio.Event()

    def track_requests(self, application: ASGIApp) -> ASGIApp:
        """Wrap ``application`` to track its requests."""

        async def tracked_application(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] in PROBES:  # WebSockets end on their own
                await application(scope, receive, send)
            elif self.stopping:
                await _send_stopping(send)
            else:
                await self._track_request(application, scope, receive, send)

        return tracked_application

    async def _track_request(self, application: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        response = TrackedResponse(send)
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

    def send(self, message: Any) -> Any:
        """Send a message. A plain function saves a stack frame per chunk of a stream."""
        if message["type"] == "http.response.start":
            self._head = dict(message["headers"])
        elif not message.get("more_body"):
            self._over = True
        return self._send(message)

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
            await refuse_request(self._send, self._error(), [(b"connection", b"close")])
        elif self._head.get(b"content-type") == EVENTS:
            id = self._head.get(b"x-request-id", b"").decode("latin-1")
            await self._send({"type": "http.response.body", "body": b"data: %b\n\n" % error_body(self._error(), id)})


async def _send_stopping(send: Send) -> None:
    await refuse_request(send, stopping_error(), [(b"connection", b"close")])
