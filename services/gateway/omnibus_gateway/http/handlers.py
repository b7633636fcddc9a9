"""Routes for plain handlers, which return a response."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omnibus_gateway.http.exchange import RequestOutcome
from omnibus_gateway.http.response import ResponseWriter

Handler = Callable[[Request], Awaitable[Response]]
_encode = msgspec.json.Encoder().encode


def add_routes(app: FastAPI, routes: Mapping[str, Mapping[str, Handler]]) -> None:
    """Add the handlers of each path, by method, to ``app``."""
    for path, handlers in routes.items():
        app.add_route(path, _HandlerRoute(handlers), methods=list(handlers), include_in_schema=False)  # type: ignore[arg-type]


class _HandlerRoute:
    """Route of one path. Its requests are not counted by model, because they have none."""

    def __init__(self, handlers: Mapping[str, Handler]) -> None:
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = ResponseWriter(send)
        async with RequestOutcome(sending):
            handle = self._handlers["GET" if scope["method"] == "HEAD" else scope["method"]]
            response = await handle(Request(scope, receive))
            response.headers["x-request-id"] = sending.id
            sending.begun = (response.media_type or "none").encode()
            await response(scope, receive, send)


def json_response(body: Any, status: int = 200) -> Response:
    """Encode ``body``, a struct or plain values, as a JSON response."""
    return Response(_encode(body), status, media_type="application/json")
