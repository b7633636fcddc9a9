"""Errors as HTTP: status, headers, and OpenAI's body with the request id and the failing stage."""

import logging
from math import ceil

import msgspec
from msgspec import Struct

from omnibus.errors import Fatal, OmnibusError, ProblemDetails, Unauthorized, from_problem


class ErrorDetail(Struct, frozen=True, omit_defaults=True):
    """An error. ``param``, ``code``, ``request_id`` and ``stage`` are always present, null if unknown."""

    message: str
    type: str
    param: str | None
    code: str | None
    request_id: str | None
    stage: str | None
    executor: str = ""
    attempt: int = 0


class ErrorBody(Struct, frozen=True):
    error: ErrorDetail


#: Clients of OpenAI ignore a larger ``Retry-After`` and retry within seconds (before 3.0), or give up above 120 s.
MAX_RETRY_AFTER_SECONDS = 60
#: A client waits no longer than this with its two retries, so the gateway advises against a retry after more.
_MAX_WAIT_SECONDS = 2 * MAX_RETRY_AFTER_SECONDS

_ENCODER = msgspec.json.Encoder()

log = logging.getLogger(__name__)


def client_error(error: Exception, name: str) -> OmnibusError:
    """Return the error that a client gets for ``error``.

    An internal error is logged under ``name``, which is the id that the client has, and its details stay there.
    """
    if isinstance(error, OmnibusError):
        return error
    log.error("%s failed", name, exc_info=error)
    return Fatal(f"internal error: the gateway's log has more under {name}")


def status_of(error: OmnibusError | ProblemDetails) -> int:
    """Return the HTTP status."""
    return _typed_error(error).status


def error_headers(error: OmnibusError | ProblemDetails) -> dict[str, str]:
    """Return extra response headers: x-should-retry, Retry-After (1 to 60 whole seconds) and WWW-Authenticate.

    Clients of OpenAI retry each 408, 409, 429 and 5xx twice, unless ``x-should-retry`` is ``false``.
    """
    api_error = _typed_error(error)
    wait = ceil(getattr(api_error, "retry_after", 0.0))
    headers = {"x-should-retry": "true" if api_error.retry_helps and wait <= _MAX_WAIT_SECONDS else "false"}
    if wait:
        headers["Retry-After"] = str(min(wait, MAX_RETRY_AFTER_SECONDS))
    if isinstance(api_error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def error_body(error: OmnibusError | ProblemDetails, request_id: str = "") -> bytes:
    """Encode ``{"error": {message, type, param, code, request_id, stage, executor?, attempt?}}`` as JSON."""
    problem = error.to_problem() if isinstance(error, OmnibusError) else error
    detail = ErrorDetail(
        message=problem.message,
        type=_typed_error(error).kind,
        param=problem.param or None,
        code=problem.code or None,
        request_id=request_id or None,
        stage=problem.stage or None,
        executor=problem.executor,
        attempt=problem.attempt,
    )
    return _ENCODER.encode(ErrorBody(detail))


def _typed_error(error: OmnibusError | ProblemDetails) -> OmnibusError:
    return error if isinstance(error, OmnibusError) else from_problem(error)
