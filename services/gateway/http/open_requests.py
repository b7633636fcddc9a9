"""All HTTP requests that a gateway is answering, and how they end when it stops.

begin_stop   readiness is off; a new request gets a typed 503 with Retry-After on a connection that then closes
finished     open requests have their time
end          the rest: each ends with the same error, as JSON or as an event of its stream, never as a bare 500
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from omnibus.errors import GatewayStopping, OmnibusError
from services.gateway.http.response import EVENTS, refuse_request
from services.gateway.openai.errors import error_body

log = logging.getLogger(__name__)

#: Seconds that the last answers may take to leave.
FINAL_RESPONSES_SECONDS = 1.0
#: Paths for probes, which are answered to the end; ``/readyz`` says that the gateway stops.
PROBES = frozenset({"/health", "/readyz", "/metrics", "/version"})


def stopping_error() -> GatewayStopping:
    """The error of all requests that a stopping gateway does not answer."""
    return GatewayStopping("this gateway is stopping: send the request again, another gateway will answer it")


class OpenResponse(Protocol):
    """A response that is under way."""

    def cancel(self) -> None:
        """End it: it outlived the drain."""


class OpenRequests:
    """Counts requests from their first byte to the end of their answer, and ends those that outlive the drain."""

    def __init__(self) -> None:
        self.stopping = False
        self._open: set[OpenResponse] = set()
        self._cancelled = False
        self._emptied = asyncio.Event()

    def track_requests(self, application: ASGIApp) -> ASGIApp:
        """``application`` with all its requests known here."""

        async def tracked_application(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"] in PROBES:  # WebSockets end by themselves
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
        """A response has begun; ``discard`` it when it has ended."""
        self._open.add(response)

    def discard(self, response: OpenResponse) -> None:
        """A response has ended."""
        self._open.discard(response)
        if not self._open:
            self._emptied.set()

    # The stop

    def begin_stop(self) -> None:
        """Take no more requests."""
        self.stopping = True

    async def wait_finished(self, seconds: float) -> None:
        """Wait until no request is open, at most ``seconds``."""
        self._emptied.clear()
        if self._open:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._emptied.wait()

    async def end_all(self, fail_runs: Callable[[OmnibusError], None]) -> None:
        """End what is still open with ``GatewayStopping``: by its run where it has one, else where it waits."""
        if not self._open:
            return
        log.warning("%d requests did not finish in time: they end with an error", len(self._open))
        fail_runs(stopping_error())
        await self.wait_finished(FINAL_RESPONSES_SECONDS)
        self._cancelled = True
        for response in list(self._open):  # some end at once
            response.cancel()
        await self.wait_finished(FINAL_RESPONSES_SECONDS)


class TrackedResponse:
    """State of a response: nothing of it, its head, or all of it has left. It may have to end with ``error``."""

    def __init__(self, send: Send, error: Callable[[], OmnibusError] = stopping_error) -> None:
        self.is_cancelled = False
        self._error = error
        self._send = send
        self._task = asyncio.current_task()
        self._head: dict[bytes, bytes] | None = None
        self._over = False

    def send(self, message: Any) -> Any:
        """Not a coroutine of its own: chunks of a stream pass without a frame more on the stack."""
        if message["type"] == "http.response.start":
            self._head = dict(message["headers"])
        elif not message.get("more_body"):
            self._over = True
        return self._send(message)

    def cancel(self) -> None:
        """Stop what makes it; ``end_with_error`` then ends it."""
        if self._task is not None:
            self.is_cancelled = True
            self._task.cancel()

    async def end_with_error(self) -> None:
        """End it with an error. A stream of bytes cannot say one: it is cut off, so nobody takes it as whole."""
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
