"""``/v1/invocations``: the recorded ends of requests, for operators: ``services.gateway.replay.history``."""

from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from omnibus.errors import BadRequest
from omnibus.settings import GatewaySettings
from services.gateway.auth.admin import AdminAuth
from services.gateway.http.handlers import add_routes, json_response
from services.gateway.replay.history import MAX_LISTED, History, Query

LIST_PATH, INVOCATION_PATH = "/v1/invocations", "/v1/invocations/{id}"
_STATUSES = ("", "running", "done", "failed", "cancelled", "expired")


class InvocationRoutes:
    """Adds the routes over ``history`` to an application."""

    def __init__(self, settings: GatewaySettings, history: History) -> None:
        self._admin = AdminAuth(settings)
        self._history = history

    def add_routes(self, app: FastAPI) -> None:
        routes: dict[str, dict[str, Any]] = {
            LIST_PATH: {"GET": self._list_invocations},
            INVOCATION_PATH: {"GET": self._get_invocation},
        }
        add_routes(app, routes)

    async def _list_invocations(self, request: Request) -> Response:
        self._admin.check_control_access(request.headers)
        return json_response(await self._history.find_page(_parse_query(request)))

    async def _get_invocation(self, request: Request) -> Response:
        self._admin.check_control_access(request.headers)
        return json_response(await self._history.get_waterfall(request.path_params["id"]))


def _parse_query(request: Request) -> Query:
    given = dict(request.query_params)
    unknown = set(given) - {"q", "model", "app", "status", "limit", "before"}
    if unknown:
        raise BadRequest(f"there is no parameter {min(unknown)[:80]!r}", param=min(unknown)[:80])
    status = given.get("status", "")
    if status not in _STATUSES:
        raise BadRequest(f"status is one of {', '.join(_STATUSES[1:])}", param="status")
    return Query(
        words=tuple(given.get("q", "").split()),
        model=given.get("model", ""),
        app=given.get("app", ""),
        status=status,
        limit=_parse_number(given, "limit", 50, 1, MAX_LISTED),
        before=_parse_number(given, "before", 0, 0, 1 << 62),
    )


def _parse_number(given: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    text = given.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise BadRequest(f"{name} is a whole number from {least} to {most}", param=name)
    return int(text)
