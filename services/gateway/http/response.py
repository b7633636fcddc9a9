"""One response over ASGI: whole, or as a stream whose errors are frames of it once it has begun."""

from secrets import token_hex

from starlette.types import Send

from omnibus.errors import OmnibusError, clear_tracebacks
from services.gateway.http.exchange import EVENTS, send_error, send_response
from services.gateway.openai.errors import error_body


class ResponseWriter:
    """A response. ``id`` is its request's; ``model`` the plan's model that it is about, as far as that is known."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.id = f"req-{token_hex(8)}"  # until the run has one
        self.model = ""
        self._kind = b""

    async def send_body(self, status: int, kind: bytes, body: bytes, more: list[tuple[bytes, bytes]]) -> None:
        await send_response(self.send, status, kind, body, more)

    async def begin_stream(self, more: list[tuple[bytes, bytes]], kind: bytes = EVENTS) -> None:
        """Begin a stream of ``kind``."""
        self._kind = kind
        headers = [(b"content-type", kind), (b"cache-control", b"no-cache"), *more]
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})

    async def send_chunk(self, body: bytes) -> None:
        """Send bytes of the stream as they are."""
        await self.send({"type": "http.response.body", "body": body, "more_body": True})

    async def send_event(self, body: bytes) -> None:
        """Send one event with ``body`` as its data, JSON of one line."""
        await self.send_chunk(b"data: %b\n\n" % body)

    async def end_stream(self, body: bytes = b"") -> None:
        await self.send({"type": "http.response.body", "body": body})

    async def report_error(self, error: OmnibusError) -> None:
        """Say what went wrong. A stream of bytes that has begun cannot: it is cut off, and nobody takes it as whole."""
        if not self._kind:
            await send_error(self.send, error, self.id)
        elif self._kind == EVENTS:
            await self.end_stream(b"data: %b\n\n" % error_body(error, self.id))
        clear_tracebacks(error)
