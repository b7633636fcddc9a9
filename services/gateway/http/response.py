"""One response over ASGI: whole, or as a stream whose errors are frames of it once it has begun."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from secrets import token_hex

from starlette.types import Send

from omnibus.errors import OmnibusError, clear_tracebacks
from omnibus.metrics import GATEWAY
from services.gateway.openai.errors import error_body, error_headers, status_of
from services.gateway.request.request import ClientRequest

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"

#: Names and values, the names in lower case.
Headers = list[tuple[bytes, bytes]]


class ResponseWriter:
    """The response to one HTTP request. ``model`` is the plan's model that it is about, as far as that is known, and
    ``run`` the request that it answers, if there is one."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.model = ""
        self.run: ClientRequest | None = None
        #: Content type of what has begun to leave, whose status cannot change any more.
        self.begun = b""
        self._id = ""

    @property
    def id(self) -> str:
        """The id that the client is given: that of the run, once there is one."""
        if self.run is not None:
            return self.run.id
        self._id = self._id or _new_id()
        return self._id

    async def send_body(self, kind: bytes, body: bytes) -> None:
        """Send a whole answer."""
        await send_response(self.send, 200, kind, body, self._run_headers())

    async def send_stream(
        self,
        parts: AsyncGenerator[bytes, None] | AsyncIterator[bytes],
        kind: bytes = EVENTS,
        extra: Headers | None = None,
        last: bytes = b"",
    ) -> None:
        """Send ``parts`` as they come, then ``last``. What fails before the first part is an error like any other."""
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
        """Say what went wrong. A stream of bytes that has begun cannot: it is cut off, and nobody takes it as whole."""
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
    """Headers that tell a client where to look: invocation, path and plan epoch."""
    if run is None:
        return []
    return [
        (b"x-request-id", run.id.encode()),
        (b"x-omnibus-path", run.path.encode()),
        (b"x-omnibus-epoch", b"%d" % run.epoch),
    ]


async def as_events(bodies: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """Yield events with ``bodies``, JSON of one line each, as their data; an empty one is a comment that keeps the
    connection alive."""
    async with aclosing(bodies):
        async for body in bodies:
            yield b"data: %b\n\n" % body if body else b": still here\n\n"


async def send_response(send: Send, status: int, kind: bytes, body: bytes, extra: Headers) -> None:
    """Send a whole response."""
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *extra]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: OmnibusError, id: str = "", extra: Headers | None = None) -> None:
    """Send an error in OpenAI's shape. It ends here."""
    id = id or _new_id()
    headers = [(key.lower().encode(), value.encode()) for key, value in error_headers(error).items()]
    headers += [(b"x-request-id", id.encode()), *(extra or ())]
    await send_response(send, status_of(error), JSON, error_body(error, id), headers)
    clear_tracebacks(error)


async def refuse_request(send: Send, error: OmnibusError, extra: Headers | None = None) -> None:
    """Answer with ``error`` what no route gets to see, and count it."""
    GATEWAY.request_counter("", error.code).inc()
    await send_error(send, error, extra=extra)


def _new_id() -> str:
    return f"req-{token_hex(8)}"
