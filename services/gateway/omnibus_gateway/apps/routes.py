"""HTTP routes of apps except ``invoke``, and authorization of their changes."""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from omnibus.settings import GatewaySettings
from omnibus_gateway.apps.registration import AppControl
from omnibus_gateway.apps.response_schemas import AppList, TaskList
from omnibus_gateway.auth.access_rules import AdminAuth
from omnibus_gateway.http.exchange import Handler, add_routes, json_response, read_request

APPS, APP, INVOKE, TASKS = "/v1/apps", "/v1/apps/{name}", "/v1/apps/{name}/invoke", "/v1/tasks"


class Routes:
    """Adds the routes over ``control`` to an application."""

    def __init__(self, settings: GatewaySettings, control: AppControl) -> None:
        self._settings = settings
        self._control = control
        self._admin = AdminAuth(settings)

    def add(self, app: FastAPI) -> None:
        routes: dict[str, dict[str, Handler]] = {
            APPS: {"GET": self._list_apps, "POST": self._register_app},
            APP: {"GET": self._show_app, "PUT": self._update_app, "DELETE": self._unregister_app},
            TASKS: {"GET": self._list_tasks},
        }
        add_routes(app, routes)

    async def _list_apps(self, _: Request) -> Response:
        return json_response(AppList(data=self._control.list_apps()))

    async def _show_app(self, request: Request) -> Response:
        return json_response(self._control.describe_app(request.path_params["name"]))

    async def _list_tasks(self, _: Request) -> Response:
        return json_response(TaskList(data=self._control.list_tasks()))

    async def _register_app(self, request: Request) -> Response:
        about, new = await self._control.register(await self._read_body(request))
        return json_response(about, 201 if new else 200)

    async def _update_app(self, request: Request) -> Response:
        body = await self._read_body(request)
        return json_response(await self._control.update(request.path_params["name"], body))

    async def _unregister_app(self, request: Request) -> Response:
        self._admin.require_token(request.headers)
        return json_response(await self._control.unregister(request.path_params["name"]))

    async def _read_body(self, request: Request) -> bytes:
        self._admin.require_token(request.headers)
        return (await read_request(request.scope, request.receive, self._settings.app_body)).body
