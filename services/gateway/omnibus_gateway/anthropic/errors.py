"""Errors and keys of ``/v1/messages`` in Anthropic's form."""

import msgspec

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
_SERVER_ERROR = 500
_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(ErrorBody)


class MessagesDialect:
    """Requests to ``/v1/messages`` may have ``x-api-key``, and get Anthropic's errors."""

    prefix = f"{MESSAGES}/"

    def request_headers(self, headers: Headers) -> Headers:
        """Return ``headers`` with the key of ``x-api-key`` as a bearer token, unless there is one."""
        by_name = dict(headers)
        key = by_name.get(b"x-api-key")
        if key is None or b"authorization" in by_name:
            return headers
        return [*headers, (b"authorization", b"Bearer " + key)]

    def response_headers(self, headers: Headers) -> Headers:
        """Return ``headers`` with the request's id under the name that the client reads."""
        id = dict(headers).get(b"x-request-id")
        return [*headers, *([(b"request-id", id)] if id else [])]

    def convert_error(self, body: bytes, status: int) -> bytes:
        """Convert an error in OpenAI's format. Without an HTTP ``status``, its code determines the type."""
        try:
            detail = _decoder.decode(body).error
        except msgspec.MsgspecError:
            return _encode(ErrorResponse(ErrorObject(_error_type(status), body.decode(errors="replace")), None))
        known_status = status or from_problem(ProblemDetails(detail.code or "", detail.message)).status
        message = f"{detail.param}: {detail.message}" if detail.param else detail.message
        return _encode(ErrorResponse(ErrorObject(_error_type(known_status), message), detail.request_id))

    def frame_error(self, body: bytes) -> bytes:
        """Return the event of an error."""
        return b"event: error\ndata: %b\n\n" % body


def _error_type(status: int) -> str:
    return _TYPES.get(status, "invalid_request_error" if status < _SERVER_ERROR else "api_error")
