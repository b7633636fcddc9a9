"""``/v1/invocations``: the recorded ends of requests, for operators: ``services.gateway.replay.history``."""

from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from omnibus.errors import BadRequest, NotFound
from omnibus.settings import GatewaySettings
from services.gateway.auth.admin import AdminAuth
from services.gateway.http.handlers import add_routes, json_response
from services.gateway.replay.contents import EdgeContents
from services.gateway.replay.history import MAX_LISTED, History, Query

LIST_PATH, INVOCATION_PATH = "/v1/invocations", "/v1/invocations/{id}"
#: ``side`` is ``inputs`` or ``outputs`` of a node; ``name`` one of them.
EDGE_PATH = "/v1/invocations/{id}/steps/{node:int}/{side}/{name}"
STEPS_PATH = "/v1/invocations/{id}/steps"
_STATUSES = ("", "running", "done", "failed", "cancelled", "expired")


class InvocationRoutes:
    """Adds the routes over ``history`` to an application."""

    def __init__(self, settings: GatewaySettings, history: History, contents: EdgeContents) -> None:
        self._admin = AdminAuth(settings)
        self._history = history
        self._contents = contents

    def add_routes(self, app: FastAPI) -> None:
        routes: dict[str, dict[str, Any]] = {
            LIST_PATH: {"GET": self._list_invocations},
            INVOCATION_PATH: {"GET": self._get_invocation},
            STEPS_PATH: {"GET": self._list_steps},
            EDGE_PATH: {"GET": self._get_edge},
        }
        add_routes(app, routes)

    async def _list_invocations(self, request: Request) -> Response:
        self._admin.check_control_access(request.headers)
        return json_response(await self._history.find_page(_parse_query(request)))

    async def _get_invocation(self, request: Request) -> Response:
        self._admin.check_control_access(request.headers)
        return json_response(await self._history.get_waterfall(request.path_params["id"]))

    async def _list_steps(self, request: Request) -> Response:
        self._admin.check_control_access(request.headers)
        return json_response(await self._history.get_steps(request.path_params["id"]))

    async def _get_edge(self, request: Request) -> Response:
        self._admin.check_control_access(request.headers)
        id, node, side, name = (request.path_params[key] for key in ("id", "node", "side", "name"))
        read = {"inputs": self._contents.read_input, "outputs": self._contents.read_output}.get(side)
        if read is None:
            raise NotFound("an edge is one of inputs or outputs of a node")
        found = await read(id, node, name)
        # What users wrote is shown, and never run.
        headers = {"content-security-policy": "sandbox", "x-content-type-options": "nosniff"}
        return Response(found.body, media_type=found.mime, headers=headers)


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
