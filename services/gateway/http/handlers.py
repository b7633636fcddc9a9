"""Plain handlers of HTTP requests: what they return, and their errors in OpenAI's shape."""

import logging
from collections.abc import Awaitable, Callable
from secrets import token_hex
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from omnibus.errors import Fatal, OmnibusError
from services.gateway.openai.errors import error_body, error_headers, status_of

log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]
_encode = msgspec.json.Encoder().encode


def by_method(handlers: dict[str, Handler]) -> Handler:
    """The handler of the request's method."""

    async def handle_request(request: Request) -> Response:
        id = f"req-{token_hex(8)}"
        try:
            response = await handlers["GET" if request.method == "HEAD" else request.method](request)
            response.headers["x-request-id"] = id
        except OmnibusError as error:
            return _error_response(error, id)
        except ClientDisconnect:  # in the middle of its body: nobody reads this
            return Response(status_code=400)
        except Exception:  # a defect of ours
            log.exception("%s failed", id)
            return _error_response(Fatal("internal error: the gateway's log has more under this request id"), id)
        return response

    return handle_request


def json_response(body: Any, status: int = 200) -> Response:
    """``body``, a struct or plain values, as JSON."""
    return Response(_encode(body), status, media_type="application/json")


def _error_response(error: OmnibusError, id: str) -> Response:
    headers = {**error_headers(error), "x-request-id": id}
    return Response(error_body(error, id), status_of(error), headers, "application/json")
