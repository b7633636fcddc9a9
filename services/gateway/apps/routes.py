"""The HTTP routes of apps, but for ``invoke``: what a client may ask, and who may change what."""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from omnibus.settings import GatewaySettings
from services.gateway.apps.registration import Control
from services.gateway.apps.response_schemas import AppList, TaskList
from services.gateway.auth.admin import Admin
from services.gateway.http.handlers import Handler, by_method, json_response
from services.gateway.openai.parse import read_body

APPS, APP, INVOKE, TASKS = "/v1/apps", "/v1/apps/{name}", "/v1/apps/{name}/invoke", "/v1/tasks"


class Routes:
    """Adds the routes over ``control`` to an application."""

    def __init__(self, settings: GatewaySettings, control: Control) -> None:
        self._settings = settings
        self._control = control
        self._admin = Admin(settings)

    def add(self, app: FastAPI) -> None:
        routes: dict[str, dict[str, Handler]] = {
            APPS: {"GET": self._list, "POST": self._register},
            APP: {"GET": self._show, "PUT": self._update, "DELETE": self._unregister},
            TASKS: {"GET": self._tasks},
        }
        for path, handlers in routes.items():
            app.add_route(path, by_method(handlers), methods=list(handlers), include_in_schema=False)

    async def _list(self, _: Request) -> Response:
        return json_response(AppList(data=self._control.apps()))

    async def _show(self, request: Request) -> Response:
        return json_response(self._control.show(request.path_params["name"]))

    async def _tasks(self, _: Request) -> Response:
        return json_response(TaskList(data=self._control.tasks()))

    async def _register(self, request: Request) -> Response:
        about, new = await self._control.register(await self._body(request))
        return json_response(about, 201 if new else 200)

    async def _update(self, request: Request) -> Response:
        body = await self._body(request)
        return json_response(await self._control.update(request.path_params["name"], body))

    async def _unregister(self, request: Request) -> Response:
        self._admin.require(request.headers)
        return json_response(await self._control.unregister(request.path_params["name"]))

    async def _body(self, request: Request) -> bytes:
        self._admin.require(request.headers)
        length = request.headers.get("content-length", "")
        return await read_body(request.stream(), self._settings.app_body, int(length) if length.isdigit() else None)
