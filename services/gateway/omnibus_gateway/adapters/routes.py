"""``/v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``, compatible with vLLM, for operators."""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from omnibus.settings import GatewaySettings
from omnibus_gateway.adapters.control import LOAD, UNLOAD, AdapterControl
from omnibus_gateway.auth.access_rules import AdminAuth
from omnibus_gateway.http.exchange import add_routes, read_request

#: Limit of a request's body in bytes.
MAX_BODY_BYTES = 16 << 10


class AdapterRoutes:
    """Adds the routes of ``control`` to an application."""

    def __init__(self, settings: GatewaySettings, control: AdapterControl) -> None:
        self._admin = AdminAuth(settings)
        self._control = control

    def add_routes(self, app: FastAPI) -> None:
        add_routes(app, {LOAD: {"POST": self._load_adapter}, UNLOAD: {"POST": self._unload_adapter}})

    async def _load_adapter(self, request: Request) -> Response:
        record = await self._control.load(await self._read_body(request))
        return PlainTextResponse(f"Success: LoRA adapter '{record.name}' added successfully.")

    async def _unload_adapter(self, request: Request) -> Response:
        name = await self._control.unload(await self._read_body(request))
        return PlainTextResponse(f"Success: LoRA adapter '{name}' removed successfully.")

    async def _read_body(self, request: Request) -> bytes:
        self._admin.require_token(request.headers)
        return (await read_request(request.scope, request.receive, MAX_BODY_BYTES)).body
