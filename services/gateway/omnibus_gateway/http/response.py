"""One response over ASGI: a body, or a stream that reports errors as frames after its beginning."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from secrets import token_hex

from starlette.types import Send

from omnibus.errors import OmnibusError, clear_tracebacks
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
