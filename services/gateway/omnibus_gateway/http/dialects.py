"""Requests and responses of other APIs than OpenAI's, around the whole application.

All layers of the gateway report errors in OpenAI's format: authentication, limits, routes and streams. ``DialectEdge``
converts them on the paths of a ``Dialect``, so that no layer depends on the path.
"""

from typing import Any, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from omnibus_gateway.http.response import Headers

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
