"""Errors and keys of ``/v1/messages`` in Anthropic's form, around the whole application.

All layers of the gateway report errors in OpenAI's format: authentication, limits, routes and streams. ``MessagesEdge``
converts them for requests to these paths, so that no layer depends on the path.
"""

from typing import Any

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from omnibus.errors import ProblemDetails, from_problem
from omnibus_gateway.anthropic.wire import MESSAGES, ErrorObject, ErrorResponse
from omnibus_gateway.http.response import Headers
from omnibus_gateway.openai.errors import ErrorBody

#: Types of errors by HTTP status; other client errors are invalid requests, and other server errors are ``api_error``.
_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    431: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}
_CLIENT_ERROR, _SERVER_ERROR = 400, 500
_EVENT = b'data: {"error":'
_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(ErrorBody)


class MessagesEdge:
    """Wraps ``application``: requests to ``/v1/messages`` may have ``x-api-key``, and get Anthropic's errors."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and f"{scope['path']}/".startswith(f"{MESSAGES}/"):
            scope["headers"] = _with_authorization(scope["headers"])
            send = _MessagesResponse(send).send
        await self._application(scope, receive, send)


def _with_authorization(headers: Headers) -> Headers:
    """Return ``headers`` with the key of ``x-api-key`` as a bearer token, unless there is one."""
    by_name = dict(headers)
    key = by_name.get(b"x-api-key")
    return headers if key is None or b"authorization" in by_name else [*headers, (b"authorization", b"Bearer " + key)]


class _MessagesResponse:
    """One response, whose errors are converted."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._error_head: dict[str, Any] | None = None  # sent with the error's body

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            id = dict(message["headers"]).get(b"x-request-id")
            message["headers"] = [*message["headers"], *([(b"request-id", id)] if id else [])]
            if message["status"] >= _CLIENT_ERROR:
                self._error_head = message
                return
        elif self._error_head is not None:
            head, self._error_head = self._error_head, None
            message["body"] = convert_error(message.get("body", b""), head["status"])
            head["headers"] = [each for each in head["headers"] if each[0] != b"content-length"]
            head["headers"].append((b"content-length", b"%d" % len(message["body"])))
            await self._send(head)
        elif message.get("body", b"").startswith(_EVENT):
            message["body"] = b"event: error\ndata: %b\n\n" % convert_error(message["body"].removeprefix(b"data: "))
        await self._send(message)


def convert_error(body: bytes, status: int = 0) -> bytes:
    """Convert an error in OpenAI's format. Without an HTTP ``status``, its code determines the type."""
    try:
        detail = _decoder.decode(body).error
    except msgspec.MsgspecError:
        return _encode(ErrorResponse(ErrorObject(_error_type(status), body.decode(errors="replace")), None))
    known_status = status or from_problem(ProblemDetails(detail.code or "", detail.message)).status
    message = f"{detail.param}: {detail.message}" if detail.param else detail.message
    return _encode(ErrorResponse(ErrorObject(_error_type(known_status), message), detail.request_id))


def _error_type(status: int) -> str:
    return _TYPES.get(status, "invalid_request_error" if status < _SERVER_ERROR else "api_error")
