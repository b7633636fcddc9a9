"""A house with apps: a real store, real workers, and a directory of apps that tests write."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import httpx
import msgspec
import psutil

from omnibus.executor.python_task import engine
from omnibus.executor.settings import ExecutorSettings
from omnibus.plan import ModelPlan, Plan
from omnibus.service import until_cancelled
from omnibus.settings import GatewaySettings, StoreSettings
from omnibus.store import Store
from omnibus_gateway.adapters.control import AdapterControl
from omnibus_gateway.application import Frontend
from omnibus_gateway.apps.service import AppService
from omnibus_planner.declared import app_models
from tests.unit.gateway.apps.forked_workers import template_pid
from tests.unit.gateway.house import ToyGateway
from tests.unit.gateway.house import start_toy_gateway as plain_house
from tests.unit.sidecar.node import wait_until

TOKEN = "open-sesame"

ECHO = """
    '''Says it back.'''

    from pydantic import BaseModel


    class Asked(BaseModel):
        text: str


    class Said(BaseModel):
        text: str
        by: str = "{by}"


    async def serve(request: Asked) -> Said:
        return Said(text=request.text)
"""

COUNT = """
    from collections.abc import AsyncIterator


    async def serve(request: int) -> AsyncIterator[int]:
        for number in range(request):
            yield number
        if request > 5:
            raise ValueError("too far")
"""


#: Reports its start, waits for permission to continue, and reports its name.
PATIENT = """
    import asyncio
    from pathlib import Path


    async def serve(request):
        Path(request["begun"]).touch()
        while not Path(request["go"]).exists():
            await asyncio.sleep(0.01)
        return "{by}"
"""

#: A unit task that brings its engine, and an app that calls it.
SHOUT = """
    from omnibus.task import TaskInput, TaskOutput, UnitTask


    class Words(TaskInput):
        text: str


    class Loud(TaskOutput):
        text: str


    class {cls}(UnitTask[Words, Loud]):
        mark: str = "!"

        async def run(self, words: Words) -> Loud:
            return Loud(text=words.text.upper() + self.mark)


    TASK = {cls}({fields})


    async def serve(request: str) -> str:
        return await (await TASK(Words(text=request))).text
"""

#: A chat model defined by an app: the toy model, in capitals.
LOUD = """
    from omnibus.app import App
    from omnibus.task import ChatInput, ChatOutput, Encode, MLLM, TextChunk, Think

    app = App(model="{model}")
    encoders = {m: Encode(model="toy-vl", component="vision") for m in ("image", "video")}
    TASK = MLLM(encoders=encoders, thinker=Think(model="toy-vl", component="thinker"))


    def loud(chunk):
        return chunk.model_copy(update={"text": chunk.text.upper()})


    async def serve(request: ChatInput) -> ChatOutput:
        answer = await TASK(request)
        return ChatOutput(text=answer.text.transform(loud))
"""


class AppGateway:
    """A gateway of the house, with a separate registry, workers and routes."""

    def __init__(self, home: ToyGateway, settings: GatewaySettings, store_url: str) -> None:
        self.store = Store(StoreSettings(url=store_url, prefix="test", timeout=5.0))
        self.apps = AppService(settings, self.store, home.router, home.runs, home.chat)
        self.adapters = AdapterControl(settings, self.store, home.router, home.chat, self.apps.model_names)
        self.frontend = Frontend(settings, home.table, self.apps, self.adapters)
        self.app = self.frontend.build_application()
        transport = httpx.ASGITransport(app=self.app)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://gateway", timeout=60.0)
        self.apps.startup()
        self._following = asyncio.get_running_loop().create_task(self.adapters.follow_store())

    async def ask(self, method: str, path: str, body: Any = None, token: str = TOKEN) -> httpx.Response:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return await self.http.request(method, path, json=body, headers=headers)

    async def register(self, module: str, status: int = 201) -> dict[str, Any]:
        response = await self.ask("POST", "/v1/apps", {"source": {"module": module, "directory": "."}})
        assert response.status_code == status, response.text
        return dict(response.json())

    async def update(self, name: str, module: str = "", status: int = 200) -> dict[str, Any]:
        body = {"source": {"module": module, "directory": "."}} if module else None
        response = await self.ask("PUT", f"/v1/apps/{name}", body)
        assert response.status_code == status, response.text
        return dict(response.json())

    async def invoke(self, name: str, body: Any, status: int = 200) -> Any:
        response = await self.http.post(f"/v1/apps/{name}/invoke", json=body)
        assert response.status_code == status, response.text
        return response.json()

    async def serves(self, name: str, version: int) -> None:
        """Wait until this gateway's worker is of ``version``."""

        def is_served() -> bool:
            about = self.apps.registry.worker_view(name)
            return about is not None and (about.state, about.version) == ("ready", version)

        await wait_until(is_served)

    async def close(self) -> None:
        await self.http.aclose()
        await self.apps.shutdown()
        await until_cancelled(self._following)
        await self.store.close()


class AppCluster:
    """A house, its gateways and its directory of apps."""

    def __init__(self, home: ToyGateway, directory: Path, store_url: str, settings: GatewaySettings) -> None:
        self.home = home
        self.directory = directory
        self.settings = settings
        self._store_url = store_url
        self.gateways: list[AppGateway] = []
        self._planner: asyncio.Task[None] | None = None

    def write(self, module: str, text: str, **values: str) -> None:
        """Write an app; ``{name}`` in its text is replaced."""
        (self.directory / f"{module}.py").write_text(format_source(text, **values))

    def gateway(self, **changes: Any) -> AppGateway:
        """Add a gateway with ``changes`` to its settings."""
        settings = msgspec.structs.replace(self.settings, **changes)
        self.gateways.append(AppGateway(self.home, settings, self._store_url))
        return self.gateways[-1]

    def plan_apps(self) -> None:
        """Start planning the apps' unit tasks, with executors for each."""
        self._planner = asyncio.ensure_future(self._plan_apps())

    async def _plan_apps(self) -> None:
        store = Store(StoreSettings(url=self._store_url, prefix="test", timeout=5.0))
        try:
            async for apps in store.app_changes():
                router = self.home.router
                declared_models = {name: model for name, model in router.plan.models.items() if not model.apps}
                models = app_models.app_models(apps, declared_models)
                router.plan = Plan(router.plan.epoch + 1, 0, 1000.0, {**declared_models, **models})
                await self._staff(models)
        finally:
            await store.close()

    async def _staff(self, models: dict[str, ModelPlan]) -> None:
        """Run executors of ``models`` and no others."""
        executor_options = {
            f"{name}-{option}-{model.option_origin(option)[:4]}": (name, option)
            for name, model in models.items()
            for option in model.options
        }
        for id in [id for id in self.home.place.executors if id.endswith("-own") and id[:-4] not in executor_options]:
            await self.home.place.executors.pop(id).drain(5.0)
        for id, (name, option) in executor_options.items():
            if f"{id}-own" in self.home.place.executors:
                continue
            model = models[name]
            runner = engine(option, ExecutorSettings(checkpoint=model.checkpoint, apps_dir=self.settings.apps_dir))
            await runner.load()
            await self.home.place.executor(
                f"{id}-own",
                {option: runner.run},
                option,
                model=name,
                named=model.tasks.__getitem__,
                origin=model.option_origin(option),
            )

    async def leave(self, gateway: AppGateway) -> None:
        self.gateways.remove(gateway)
        await gateway.close()

    async def close(self) -> None:
        if self._planner is not None:
            await until_cancelled(self._planner)
        for gateway in self.gateways:
            await gateway.close()


@asynccontextmanager
async def start_app_cluster(tmp_path: Path, store_url: str, **changes: Any) -> AsyncIterator[AppCluster]:
    directory = tmp_path / "apps"
    directory.mkdir()
    usual = {
        "admin_token": TOKEN,
        "apps_dir": str(directory),
        "app_uploads": True,
        "app_ready": 20.0,
        "app_drain": 10.0,
    }
    async with plain_house(tmp_path, **{**usual, **changes}) as home:
        cluster = AppCluster(home, directory, store_url, home.settings)
        try:
            yield cluster
        finally:
            await cluster.close()


def format_source(text: str, **values: str) -> str:
    """``text`` as a module; ``{name}`` in it is replaced."""
    text = dedent(text)
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def find_worker_pids() -> set[int]:
    """Return the process ids of this process's workers."""
    children = psutil.Process().children(recursive=True)
    pids = {child.pid for child in children if "omnibus.app.worker" in " ".join(_read_command(child))}
    return pids - {template_pid()}


def _read_command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def read_stream_parts(response: httpx.Response) -> list[Any]:
    """The data of each server-sent event."""
    blocks = [block.removeprefix("data: ") for block in response.text.split("\n\n") if block]
    return [block if block == "[DONE]" else json.loads(block) for block in blocks]
