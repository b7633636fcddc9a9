"""One client connection: limits on the head of a request, and a callback for its disconnect.

httptools limits neither the bytes nor the time of a head, and copies a line again with each piece of it. The connection
therefore counts bytes before it passes them to the parser, and starts a timer when a request may begin. Bodies are
limited where they are read (``openai.parse.read_body``), because the limit depends on the route.
Writes to the client share one system call per turn of the event loop.
"""

import asyncio
import fcntl
import termios
from array import array
from asyncio import BaseTransport, TimerHandle, Transport
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, NamedTuple, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from omnibus.errors import BadRequest, HeadTooLarge, OmnibusError, TooSlow
from omnibus.metrics import GATEWAY
from omnibus.settings import GatewaySettings
from omnibus_gateway.http.response import ON_LEFT as ON_LEFT
from omnibus_gateway.http.response import DirectResponse, DirectRoute
from omnibus_gateway.openai.errors import error_body, error_headers

#: Maximum bytes that wait for the end of the turn; more are sent at once, so that slow readers are detected in time.
MAX_HELD_BYTES = 64 << 10


class TurnTransport:
    """Joins the writes to ``transport`` in one turn: the head and body of a response, or several events."""

    __slots__ = ("_ended", "_held", "_loop", "_nbytes", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._nbytes = 0
        self._ended = False

    def write(self, data: bytes) -> None:
        """Send ``data`` after previous writes, at the end of this turn."""
        if self._ended:
            self._transport.write(data)  # raises here, not at the end of the turn
            return
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(data)
        self._nbytes += len(data)
        if self._nbytes > MAX_HELD_BYTES:
            self.flush()

    def write_now(self, data: bytes) -> None:
        """Send ``data`` after previous writes immediately: no more is written in this turn."""
        if self._held:
            self.write(data)
            self.flush()
        elif self._ended or not self._transport.is_closing():
            self._transport.write(data)

    def writelines(self, lines: Iterable[bytes]) -> None:
        """Send ``lines`` after previous writes, at the end of this turn."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Send pending data, before any other operation on the connection."""
        pieces, self._held, large = self._held, [], self._nbytes > MAX_HELD_BYTES
        self._nbytes = 0
        if not pieces or self._transport.is_closing():
            return
        if large:  # joining would copy much
            self._transport.writelines(pieces)
        else:
            self._transport.write(b"".join(pieces))

    def write_eof(self) -> None:
        """Close the writing half after pending data; a later write is a programming error."""
        self.flush()
        self._ended = True
        self._transport.write_eof()

    def close(self) -> None:
        """Close the connection after pending data."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once, and drop pending data."""
        self._held, self._nbytes = [], 0
        self._transport.abort()

    def get_write_buffer_size(self) -> int:
        """Return the bytes that are written but not sent."""
        return self._nbytes + self._transport.get_write_buffer_size()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


#: Key of the scope that is set once the whole body has arrived: reading it does not wait.
BODY_COMPLETE = "omnibus.whole"

#: Headers that identify client and host: with duplicates, two parsers could see two different requests.
_SINGLE_HEADERS = frozenset({b"host", b"authorization"})
#: Maximum number of pipelined requests that wait on one connection.
_MAX_PIPELINED = 32
#: Seconds for a rejected client to read the error before its connection is closed, and bytes that it may still send.
_LINGER_SECONDS, _LINGER_BYTES = 1.0, 2 << 20
#: Seconds for the first request of a connection, or one that has begun, when the server closes.
LAST_REQUEST_SECONDS = 2.0
#: Seconds that a direct route waits for a body after its head: many clients send the two separately.
_DIRECT_BODY_SECONDS = 0.02


class ConnectionLimits(NamedTuple):
    """Limits of a connection.

    ``head_seconds`` starts when a request may begin. ``linger_seconds`` is for the rest of a body whose response is
    complete.
    """

    head_bytes: int
    head_lines: int
    head_seconds: float
    linger_seconds: float

    @classmethod
    def from_settings(cls, settings: GatewaySettings) -> "ConnectionLimits":
        return cls(settings.head_bytes, settings.head_lines, settings.head_seconds, settings.body_pause)


class _ResponseTransport:
    """Connection for the writes of a response: ``close`` waits for the rest of the request's body.

    If a connection is closed with unread bytes, the kernel resets it. The client may then lose parts of the response.
    """

    __slots__ = ("close", "is_closing", "write")

    def __init__(self, transport: Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class LimitedHttpProtocol(HttpToolsProtocol):
    """HTTP protocol with limits on the head of a request.

    It calls a handler when the connection is lost, so that no request needs a task that waits for that. Requests that
    the ``direct`` route accepts need no task at all.
    """

    def __init__(self, *args: Any, limits: ConnectionLimits, direct: DirectRoute | None = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self._limits = limits
        self._direct = direct
        self._pieces: list[bytes] | None = None  # of a body for the direct route
        self._handover: TimerHandle | None = None  # passes that body to the application
        self.answering: DirectResponse | None = None
        self._in_head = True  # no head is complete: a request may begin, or has begun
        self._overhead = 0  # bytes after the last one of a body: of a head, or of a chunked body's trailer
        self._body_bytes = 0  # bytes of the body that have arrived
        self._timer: TimerHandle | None = None
        self._problem: OmnibusError | None = None  # why the parser was stopped
        self._refused = False
        self.is_last = False  # no request follows the current or next one
        self._closing = False  # waits only for the body of a request whose response is complete
        self._upgraded = False  # another protocol now has the connection

    # Connection

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(TurnTransport(cast(Transport, transport), self.loop))
        self._start_timer(self._limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._take_pieces() is not None:
            GATEWAY.request_counter("", "cancelled").inc()
        cycle = self.cycle
        super().connection_lost(exc)
        if self.answering is not None:
            self.answering.leave()
        if cycle is not None and cycle.disconnected:
            left: Callable[[], None] | None = cycle.scope.get(ON_LEFT)
            if left is not None:
                left()

    def eof_received(self) -> None:
        """Send pending bytes: after this, the event loop closes the connection."""
        self.transport.flush()

    def shutdown(self) -> None:
        """Close the connection after the current request, or one in transit.

        The rest of its body is read. Otherwise, a client that has just connected or sent bytes could not know whether
        its request was processed.
        """
        self._hand_over()
        self.is_last = True
        if not self._is_idle():
            super().shutdown()
        elif self._in_head and (self.cycle is None or self._overhead or self._has_unread_bytes()):
            self._stop_timer()
            self._start_timer(min(LAST_REQUEST_SECONDS, self._limits.head_seconds))
        else:
            self._close_after_body()

    def _has_unread_bytes(self) -> bool:
        """Return True if the event loop has not read all received bytes."""
        handle = self.transport.get_extra_info("socket")
        unread = array("i", [0])
        if handle is not None and handle.fileno() >= 0:
            fcntl.ioctl(handle.fileno(), termios.FIONREAD, unread)
        return unread[0] > 0

    def _close_after_body(self) -> None:
        """Close the connection after the rest of an answered request's body."""
        if self._in_head or not self._is_idle() or self.transport.is_closing():
            self.transport.close()
        elif not self._closing:
            self._closing = True
            if self.transport.can_write_eof():
                self.transport.write_eof()
            if self._timer is None:
                self._start_timer(self._limits.linger_seconds)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._overhead += len(data)
            if self._overhead > _LINGER_BYTES:
                self.transport.abort()
            return
        if len(data) <= self._limits.head_bytes - self._overhead:
            self._overhead += len(data)
            super().data_received(data)
        else:
            self._feed_in_pieces(memoryview(data))
        if self._in_head and self._timer is None and self._is_idle() and not self._refused and not self._upgraded:
            self._start_timer(self._limits.head_seconds)
        if self._pieces is not None and self._handover is None:
            self._handover = self.loop.call_later(_DIRECT_BODY_SECONDS, self._hand_over)

    def _expected_bytes(self) -> int:
        """Return the remaining bytes of the current body; 0 if its head has no length."""
        header_map = {} if self._in_head else dict(self.headers)
        length = header_map.get(b"content-length", b"")
        return int(length) - self._body_bytes if length.isdigit() and b"transfer-encoding" not in header_map else 0

    def _feed_in_pieces(self, data: memoryview) -> None:
        while data and not self._refused and not self.transport.is_closing():
            room = max(self._limits.head_bytes - self._overhead, self._expected_bytes())
            if room <= 0:
                self._refuse_request(HeadTooLarge(f"The request's head has more than {self._limits.head_bytes} bytes."))
                return
            piece, data = data[:room], data[room:]
            self._overhead += len(piece)
            super().data_received(piece)

    # Parser

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[ON_LEFT] = None

    def on_headers_complete(self) -> None:
        upgrades = self.parser.should_upgrade() and self._should_upgrade()
        self._problem = self._head_error() or (self._upgrade_error() if upgrades else None)
        if self._problem is not None:
            raise ValueError("the head is refused")  # stops the parser; ``send_400_response`` sends the error
        self._in_head = False
        self._overhead = 0
        if self._timer is not None:
            self._stop_timer()
        if upgrades:
            self._upgraded = True  # ``handle_websocket_upgrade`` follows
            super().on_headers_complete()
        elif self._direct is not None and self._may_be_direct(self._direct):
            self._pieces = []
        else:
            self._start_cycle()

    def _may_be_direct(self, route: DirectRoute) -> bool:
        """Return True if ``route`` may answer the request; no other may be pending."""
        return (
            self._is_idle()
            and not self.pipeline
            and not self.is_last
            and not self._closing
            and self.parser.get_http_version() == "1.1"
            and route.accepts_head(self.parser.get_method(), self.url, self.headers)
        )

    @property
    def keeps_alive(self) -> bool:
        """False if the latest request is the last one on this connection."""
        return bool(self.parser.should_keep_alive())

    def _start_cycle(self) -> None:
        """Start a task that answers the current request."""
        super().on_headers_complete()
        self.cycle.transport = _ResponseTransport(self.transport, self._close_after_body)
        if self.is_last:
            self.cycle.keep_alive = False

    def _take_pieces(self) -> list[bytes] | None:
        """Remove and return the pieces of a body for the direct route."""
        pieces, self._pieces = self._pieces, None
        if self._handover is not None:
            self._handover.cancel()
            self._handover = None
        return pieces

    def _hand_over(self) -> None:
        """Pass a request that the direct route waits for to the application."""
        pieces = self._take_pieces()
        if pieces is not None:
            self._start_cycle()
            for piece in pieces:
                self._body_bytes += len(piece)
                super().on_body(piece)

    def _head_error(self) -> OmnibusError | None:
        if len(self.headers) > self._limits.head_lines:
            return HeadTooLarge(f"The request has more than {self._limits.head_lines} headers.")
        if len(self.pipeline) >= _MAX_PIPELINED:
            return BadRequest(f"More than {_MAX_PIPELINED} requests wait on this connection: read their answers first.")
        names = [name for name, _ in self.headers if name in _SINGLE_HEADERS]
        if len(names) > len(set(names)):
            return BadRequest("The request has more than one Host or Authorization header.")
        return None

    def _upgrade_error(self) -> OmnibusError | None:
        if self.parser.get_method() != b"GET" or self.parser.get_http_version() != "1.1":
            return BadRequest("A WebSocket is opened by GET with HTTP/1.1.")
        if not self._is_idle() or self.pipeline:
            return BadRequest("A WebSocket is opened on a connection that has no open request.")
        return None

    def on_body(self, body: bytes) -> None:
        self._overhead = 0
        if self._pieces is not None:
            self._pieces.append(body)
        else:
            # A single piece that waits for its reader is not copied; several share one buffer.
            cycle: Any = self.cycle
            self._body_bytes += len(body)
            if not cycle.body and not cycle.response_complete:
                cycle.body, body = body, b""
            elif isinstance(cycle.body, bytes):
                cycle.body = bytearray(cycle.body)
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._overhead = self._body_bytes = 0
        self._in_head = True
        if self._timer is not None:
            self._stop_timer()
        if self._upgraded or (self._pieces is not None and self._begin_directly()):
            return
        self.cycle.scope[BODY_COMPLETE] = True
        super().on_message_complete()
        if self._closing:
            self.transport.close()

    def _begin_directly(self) -> bool:
        """Try the direct route; if it declines, pass the request and its body to the application."""
        pieces = self._take_pieces() or []
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if self._direct is not None and self._direct.begin(self, body):
            return True
        self._start_cycle()
        super().on_body(body)
        return False

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.answering is not None:
            self.answering.on_writable()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._in_head and self._timer is None and not self.transport.is_closing():
            self._start_timer(self._limits.linger_seconds)

    # Rejections

    def send_400_response(self, msg: str) -> None:
        """Reject a request that the parser could not read or stopped at."""
        self._refuse_request(self._problem or BadRequest("The request is not valid HTTP/1.1."))

    def _refuse_request(self, error: OmnibusError) -> None:
        """Answer with ``error`` if no other response is in progress; close the connection."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._stop_timer()
        GATEWAY.request_counter("", error.code).inc()
        if self._closing or not self._is_idle():  # writing is closed, or would break the other response
            self.transport.close()
            return
        body = error_body(error)
        head = f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\nconnection: close\r\n"
        retry = "".join(f"{name.lower()}: {value}\r\n" for name, value in error_headers(error).items())
        about = f"{retry}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self.transport.write((head + about).encode() + body)
        # If it were closed with unread bytes, the kernel would discard the response.
        self._timer = self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    # Time

    def _is_idle(self) -> bool:
        """Return True if no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _start_timer(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._on_head_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_head_timeout(self) -> None:
        self._timer = None
        if self._in_head and self._overhead:
            self._refuse_request(TooSlow(f"The request's head was not complete in {self._limits.head_seconds:g} s."))
        else:
            self.transport.close()
