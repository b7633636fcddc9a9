"""Loading and unloading of LoRA adapters, by operators and as in vLLM. Other gateways follow the store.

Before clients can call an adapter, the gateway checks its header, and one executor of its model answers with it. The
others load it on request.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Annotated

from fastapi import FastAPI
from msgspec import Meta, Struct, json
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from omnibus.checkpoints.adapters import describe_adapter
from omnibus.errors import BadRequest, Conflict, NotFound
from omnibus.plan import LANGUAGE_COMPONENTS
from omnibus.settings import GatewaySettings
from omnibus.store import AdapterRecord, Store
from omnibus_gateway.auth.access_rules import AdminAuth
from omnibus_gateway.core import Router
from omnibus_gateway.http.exchange import add_routes, read_request
from omnibus_gateway.openai.chat_request import ChatRequest, UserMessage
from omnibus_gateway.openai.parse import decode_body
from omnibus_gateway.tasks.chat import Chat
from omnibus_gateway.tasks.chat_response import open_output_streams

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"

Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/-]*$")]


class LoadAdapterRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A request to load an adapter. ``lora_path`` must be inside the allowed directory.

    ``load_inplace`` replaces an adapter with this name. ``base_model_name`` is required if there are several models.
    """

    lora_name: Name
    lora_path: Annotated[str, Meta(min_length=1, max_length=4096)]
    load_inplace: bool = False
    base_model_name: str | None = None
    is_3d_lora_weight: bool = False


class UnloadAdapterRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A request to unload an adapter. ``lora_int_id`` is accepted and ignored."""

    lora_name: str
    lora_int_id: int | None = None


LOAD_DECODER = json.Decoder(LoadAdapterRequest)
UNLOAD_DECODER = json.Decoder(UnloadAdapterRequest)


log = logging.getLogger(__name__)

SETTING = "OMNIBUS_GATEWAY_ADAPTERS_DIR"
#: Timeout until this gateway sees its own change of the store, in seconds.
SYNC_TIMEOUT_SECONDS = 10.0


class AdapterControl:
    """Operations of the control routes. There are no locks: the store orders concurrent changes.

    ``app_models`` returns the names of models that apps provide.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        store: Store,
        router: Router,
        chat: Chat,
        app_models: Callable[[], Iterable[str]],
    ) -> None:
        self._settings = settings
        self._store = store
        self._router = router
        self._chat = chat
        self._app_models = app_models
        self._known: dict[str, AdapterRecord] = {}
        self._changed = asyncio.Event()

    async def follow_store(self) -> None:
        """Follow the adapters in the store, until cancelled."""
        async for adapters in self._store.adapter_changes():
            self._known = adapters
            self._router.use_loaded_adapters(adapters)
            self._changed.set()
            self._changed = asyncio.Event()

    async def load(self, body: bytes) -> AdapterRecord:
        """Load the adapter of the request ``body`` and enable it.

        Raises ``Forbidden`` for a path that is not allowed, ``BadRequest`` for an invalid adapter and ``Conflict`` for
        a name in use. Raises also the errors of a request to its model.
        """
        request = decode_body(LOAD_DECODER, body)
        if request.is_3d_lora_weight:
            raise BadRequest("Adapters of experts are not supported: omit it.", param="is_3d_lora_weight")
        source, _ = await asyncio.to_thread(describe_adapter, request.lora_path, self._settings.adapters_dir, SETTING)
        self._check_name(request, await self._store.adapters())
        model = self._choose_model(request.base_model_name)
        record = AdapterRecord(request.lora_name, model, source.path, source.sha256, round(time.time(), 3))
        await self._try_adapter(record)
        await self._store.put_adapter(record, replace=request.load_inplace)
        await self._wait_until_seen(record.name, record)
        log.info("adapter %s of %s is loaded from %s", record.name, record.model, record.path)
        return record

    async def unload(self, body: bytes) -> str:
        """Unload the adapter of the request ``body`` and return its name. Running requests finish with it.

        Raises ``NotFound``, and ``Conflict`` for a declared adapter.
        """
        name = decode_body(UNLOAD_DECODER, body).lora_name
        try:
            await self._store.drop_adapter(name)
        except NotFound:
            if self._router.base_model(name) == name:
                raise NotFound(f"The lora adapter '{name[:80]}' cannot be found.", param="lora_name") from None
            raise Conflict(
                f"{name!r} is declared with its model: remove it from the declarations", param="lora_name"
            ) from None
        await self._wait_until_seen(name, None)
        log.info("adapter %s is unloaded", name)
        return name

    def _check_name(self, request: LoadAdapterRequest, adapters: dict[str, AdapterRecord]) -> None:
        """Raise if the name is in use. Models and adapters share one field of requests."""
        name = request.lora_name
        if name in adapters and not request.load_inplace:
            raise BadRequest(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
                param="lora_name",
            )
        models = self._router.plan.models if self._router.plan is not None else {}
        declared_names = self._router.adapter_bases.keys() - self._router.loaded_adapters.keys()
        if name in {*models, *declared_names, *self._app_models()}:
            raise Conflict(f"{name!r} is the name of a model or a declared adapter: choose another", param="lora_name")

    def _choose_model(self, base_model: str | None) -> str:
        """Return the model of the adapter. Raises ``BadRequest`` and ``NotFound``."""
        if base_model is not None:
            self._chat.find_model(base_model)
        models = self._router.plan.models if self._router.plan is not None else {}
        candidates = [
            name
            for name, model in models.items()
            if base_model in (None, name) and not model.apps and not LANGUAGE_COMPONENTS.isdisjoint(model.components)
        ]
        if len(candidates) != 1:
            there = f"set it to one of {', '.join(candidates)}" if candidates else "there is no language model"
            raise BadRequest(f"base_model_name must be a language model: {there}", param="base_model_name")
        return candidates[0]

    async def _try_adapter(self, record: AdapterRecord) -> None:
        """Generate a token with the adapter. An executor rejects it if it does not fit."""
        run = self._chat.open_request(record.model)
        run.open_answer()
        async with run.until_end():
            request = ChatRequest(model=record.model, messages=[UserMessage("hello")], max_tokens=1)
            prepared_chat = await self._chat.prepare_request(run, request)
            prepared_chat.use_adapter(record.name, record)
            output = await self._chat.begin_answer(run, prepared_chat)
            async for _ in run.read_outputs(open_output_streams(output)):
                pass  # the token is not needed

    async def _wait_until_seen(self, name: str, record: AdapterRecord | None) -> None:
        """Wait until this gateway has seen its own change, up to ``SYNC_TIMEOUT_SECONDS``."""
        try:
            async with asyncio.timeout(SYNC_TIMEOUT_SECONDS):
                while self._known.get(name) != record:
                    await self._changed.wait()
        except TimeoutError:
            log.warning("adapter %s: the store has not confirmed the change yet", name)


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
