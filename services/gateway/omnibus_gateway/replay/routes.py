"""``/v1/invocations``: recorded ends of requests, for operators. See ``omnibus_gateway.replay.history``."""

import math
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from omnibus.errors import BadRequest, NotFound
from omnibus.settings import GatewaySettings
from omnibus_gateway.auth.access_rules import AdminAuth
from omnibus_gateway.http.exchange import add_routes, json_response, parse_number, parse_query
from omnibus_gateway.replay.history import MAX_LISTED, History, Query
from omnibus_gateway.rerun.contents import EdgeContents

LIST_PATH, INVOCATION_PATH = "/v1/invocations", "/v1/invocations/{id}"
#: ``side`` is ``inputs`` or ``outputs`` of a node; ``name`` is one of them.
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
        return json_response(await self._history.find_page(_parse_filters(request)))

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
            raise NotFound("unknown edge: the path must contain inputs or outputs of a node")
        edge = await read(id, node, name)
        # Users' content is displayed, and never executed.
        headers = {"content-security-policy": "sandbox", "x-content-type-options": "nosniff"}
        return Response(edge.body, media_type=edge.mime, headers=headers)


def _parse_filters(request: Request) -> Query:
    filters = parse_query(
        request, "q", "model", "app", "status", "since", "until", "min_ms", "max_ms", "limit", "before"
    )
    status = filters.get("status", "")
    if status not in _STATUSES:
        raise BadRequest(f"status must be one of {', '.join(_STATUSES[1:])}", param="status")
    until, longest = parse_number(filters, "until", 0, 0, 1 << 40), parse_number(filters, "max_ms", 0, 0, 1 << 40)
    return Query(
        words=tuple(filters.get("q", "").split()),
        model=filters.get("model", ""),
        app=filters.get("app", ""),
        status=status,
        since=parse_number(filters, "since", 0, 0, 1 << 40),
        until=until or math.inf,
        min_seconds=parse_number(filters, "min_ms", 0, 0, 1 << 40) / 1000,
        max_seconds=longest / 1000 or math.inf,
        limit=parse_number(filters, "limit", 50, 1, MAX_LISTED),
        before=parse_number(filters, "before", 0, 0, 1 << 62),
    )
