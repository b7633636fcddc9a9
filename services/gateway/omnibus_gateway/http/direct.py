"""Requests that are answered directly, without a task and an ASGI scope.

The event loop callback that reads their bytes also starts the answer. A direct route accepts only plain requests:
``DirectRoute.accepts_head`` checks the head, ``DirectRoute.begin`` the rest. All other requests go to the application
unchanged.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Protocol

from omnibus.errors import OmnibusError, clear_tracebacks
from omnibus_gateway.http.response import EVENTS, JSON, Headers, OpenRequests, stopping_error
from omnibus_gateway.openai.errors import error_body, error_headers, status_of

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
