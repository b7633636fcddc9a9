"""Loading and unloading LoRA adapters at any gateway; the others follow by the store, executors by requests.

An adapter is looked at by its header, and one executor of its model answers with it, before anybody else can call it.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from omnibus.checkpoints.adapter_source import describe_adapter
from omnibus.errors import BadRequest, Conflict, NotFound
from omnibus.plan import LANGUAGE_COMPONENTS
from omnibus.settings import GatewaySettings
from omnibus.store import AdapterRecord, Store
from services.gateway.adapters.requests import LOAD_DECODER, UNLOAD_DECODER, LoadAdapterRequest
from services.gateway.dispatch.streams import merge_streams
from services.gateway.openai.chat_request import ChatRequest, UserMessage
from services.gateway.openai.parse import decode_body
from services.gateway.request.accumulator import AnswerAccumulator
from services.gateway.request.lifecycle import run_to_end
from services.gateway.routing.router import Router
from services.gateway.tasks.chat import Chat
from services.gateway.tasks.output_streams import open_output_streams

log = logging.getLogger(__name__)

SETTING = "OMNIBUS_GATEWAY_ADAPTERS_DIR"
#: Seconds until this gateway must have seen what it wrote.
SYNC_TIMEOUT_SECONDS = 10.0


class AdapterControl:
    """Operations of the control routes. Nothing here is locked: the store decides which of two changes was first.

    ``app_models`` returns the names of models that apps bring.
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
        """Serve the adapters that the store has, until cancelled."""
        async for found in self._store.adapter_changes():
            self._known = found
            self._router.use_loaded_adapters(found)
            self._changed.set()
            self._changed = asyncio.Event()

    async def load(self, body: bytes) -> AdapterRecord:
        """Load the adapter that ``body`` names; requests may call it from now on.

        Raises ``Forbidden`` for a path that is not allowed, ``BadRequest`` for what cannot be loaded, ``Conflict`` for
        a name that something else has, and what a request to its model raises.
        """
        wanted = decode_body(LOAD_DECODER, body)
        if wanted.is_3d_lora_weight:
            raise BadRequest("Adapters of experts are not supported here: leave it out.", param="is_3d_lora_weight")
        source, _ = await asyncio.to_thread(describe_adapter, wanted.lora_path, self._settings.adapters_dir, SETTING)
        self._check_name(wanted, await self._store.adapters())
        model = self._choose_model(wanted.base_model_name)
        record = AdapterRecord(wanted.lora_name, model, source.path, source.sha256, round(time.time(), 3))
        await self._try_adapter(record)
        await self._store.put_adapter(record, replace=wanted.load_inplace)
        await self._wait_until_seen(record.name, record)
        log.info("adapter %s of %s is loaded from %s", record.name, record.model, record.path)
        return record

    async def unload(self, body: bytes) -> str:
        """Unload the adapter that ``body`` names: requests under way finish with it. Returns its name.

        Raises ``NotFound``.
        """
        name = decode_body(UNLOAD_DECODER, body).lora_name
        try:
            await self._store.drop_adapter(name)
        except NotFound:
            if self._router.base_model(name) == name:
                raise NotFound(f"The lora adapter '{name[:80]}' cannot be found.", param="lora_name") from None
            raise Conflict(
                f"{name!r} is declared with its model: take it out of the declarations", param="lora_name"
            ) from None
        await self._wait_until_seen(name, None)
        log.info("adapter %s is unloaded", name)
        return name

    def _check_name(self, wanted: LoadAdapterRequest, known: dict[str, AdapterRecord]) -> None:
        """Raise for a name that is taken: models and adapters are called by one field of requests."""
        name = wanted.lora_name
        if name in known and not wanted.load_inplace:
            raise BadRequest(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                "'load_inplace' to True.",
                param="lora_name",
            )
        models = self._router.plan.models if self._router.plan is not None else {}
        declared = self._router.adapter_bases.keys() - self._router.loaded_adapters.keys()
        if name in {*models, *declared, *self._app_models()}:
            raise Conflict(f"{name!r} is a model's name or a declared adapter's: choose another", param="lora_name")

    def _choose_model(self, named: str | None) -> str:
        """The model whose language model the adapter changes. Raises ``BadRequest`` and ``NotFound``."""
        if named is not None:
            self._chat.find_model(named)
        models = self._router.plan.models if self._router.plan is not None else {}
        found = [
            name
            for name, model in models.items()
            if named in (None, name) and not model.apps and not LANGUAGE_COMPONENTS.isdisjoint(model.components)
        ]
        if len(found) != 1:
            there = f"one of {', '.join(found)}" if found else "there is none here"
            raise BadRequest(f"say which language model it changes: {there}", param="base_model_name")
        return found[0]

    async def _try_adapter(self, record: AdapterRecord) -> None:
        """Have an executor load it and answer with a token: what does not fit its model is refused by that."""
        run = self._chat.open_request(record.model)
        got = run.answer = AnswerAccumulator(record.model, run.created)
        async with run_to_end(run):
            request = ChatRequest(model=record.model, messages=[UserMessage("hello")], max_tokens=1)
            asked = await self._chat.prepare_request(run, request)
            asked.use_adapter(record.name, record)
            output = await self._chat.begin_answer(run, asked)
            async for batch in merge_streams(open_output_streams(output)):
                for name, item in batch:
                    got.add_item(name, item.data, item.array)

    async def _wait_until_seen(self, name: str, record: AdapterRecord | None) -> None:
        """Wait until this gateway serves by what it wrote, within ``SYNC_TIMEOUT_SECONDS``."""
        try:
            async with asyncio.timeout(SYNC_TIMEOUT_SECONDS):
                while self._known.get(name) != record:
                    await self._changed.wait()
        except TimeoutError:
            log.warning("adapter %s: the store has not said yet what was written", name)
