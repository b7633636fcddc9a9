"""Open HTTP requests of a gateway, and their end when it stops.

begin_stop:    readiness is off. A new request gets a typed 503 with Retry-After, and its connection closes.
wait_finished: open requests have time to finish.
end_all:       the rest end with the same error, as JSON or as an event of their stream, never as a bare 500.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from omnibus.errors import GatewayStopping, OmnibusError
from omnibus_gateway.http.response import EVENTS, refuse_request
from omnibus_gateway.openai.errors import error_body

log = logging.getLogger(__name__)

#: Seconds for sending the last responses.
FINAL_RESPONSES_SECONDS = 1.0
#: Paths of probes, which are always answered; ``/readyz`` reports that the gateway is stopping.
PROBES = frozenset({"/health", "/readyz", "/metrics", "/version"})


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
