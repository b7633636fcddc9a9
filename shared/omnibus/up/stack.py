"""The whole system as processes of one machine: NATS, Valkey, the six services, executors by the plan."""

import asyncio
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from omnibus.bus import subjects
from omnibus.bus.nats import NatsBus
from omnibus.errors import BadRequest, BusUnavailable, DeadlineExceeded, OmnibusError
from omnibus.plan import Option, Plan
from omnibus.settings import BusSettings, StoreSettings
from omnibus.store import Store
from omnibus.up import infra, sprout
from omnibus.up.keeper import Exit
from omnibus.up.logs import Log
from omnibus.up.nursery import suits as nursery_suits
from omnibus.up.ports import free_ports
from omnibus.up.run import RunDirectory, RunState
from omnibus.up.spec import ROOT, ProcessSpec, python
from omnibus.up.supervisor import Supervisor

NODE = "local"
READY_WITHIN = 180.0  # seconds for all executors to load
#: What the nursery imports once for all executors.
SHARED = (
    "omnibus_models.warm",
    "omnibus.executor.host",
    "omnibus.service",
    "services.engines",
    "services.encoder.runner",
    "services.generator.runner",
    "services.llm.runner",
    "services.llm.talk",
)


class Stack:
    """``async with Stack(models) as stack``: everything runs inside and nothing is left afterwards.

    ``models`` is the text of a declarations file. ``env`` is added to every service's environment.
    Executors are forked from a nursery on Linux, for the default engine on CPUs, unless ``nursery`` or
    ``OMNIBUS_UP_NURSERY`` says no; then, and elsewhere, they are processes of their own.
    """

    def __init__(
        self,
        models: str,
        *,
        port: int = 0,
        log: Log | None = None,
        env: Mapping[str, str] | None = None,
        directory: Path | None = None,
        nursery: bool = True,
    ) -> None:
        self._nursery = nursery and nursery_suits({**os.environ, **(env or {})})
        self._models = models
        self._log = log or Log()
        self._extra = dict(env or {})
        self._directory = directory
        self._port = port
        self._stack = AsyncExitStack()
        self._bus: NatsBus | None = None
        self._executors: dict[str, str] = {}

    async def __aenter__(self) -> "Stack":
        if not (ROOT / "services").is_dir():
            raise BadRequest(f"no services in {ROOT}: run from a checkout installed with `pip install -e`")
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        run = self._stack.enter_context(RunDirectory(self._directory))
        self.directory = run.path
        self._nursery_socket = str(run.path / "nursery.sock")
        (run.path / "models.json").write_text(self._models)
        ports = free_ports(4)  # at once, so that they differ
        self.nats = infra.nats(run.path, port=ports[1], monitor_port=ports[2])
        self.valkey = infra.valkey(run.path, port=ports[3])
        self.port = self._port or ports[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self._env = self._environment(run.path)
        self.supervisor = Supervisor(
            self._specs(), log=self._log, on_exit=self._exited, shm_prefix=f"omnibus-{NODE}-{os.getpid()}"
        )
        await self._stack.enter_async_context(self.supervisor)
        self._publish_state(run)  # early: whoever cleans up after a kill needs to know what there was
        self._bus = await NatsBus.connect(BusSettings(url=self.nats.url), "supervisor")
        self._stack.push_async_callback(self._bus.drain)
        plan = await self.supervisor.unless_over(self._plan())
        await self.supervisor.add(*self._executor_specs(plan))
        await self.supervisor.unless_over(self.ready(READY_WITHIN))
        self._publish_state(run)

    @property
    def bus(self) -> NatsBus:
        """The supervisor's own connection to the bus."""
        if self._bus is None:
            raise BusUnavailable("the stack is not up")
        return self._bus

    def _publish_state(self, run: RunDirectory) -> None:
        run.write(
            RunState(
                directory=str(run.path),
                pid=os.getpid(),
                started=time.time(),
                nats_url=self.nats.url,
                store_url=self.valkey.url,
                monitor_url=self.nats.monitor,
                gateway_url=self.url,
                ports={"gateway": self.port},
                pids=self.supervisor.pids,
                shm_prefix=f"omnibus-{NODE}-{os.getpid()}",
            )
        )

    def _environment(self, directory: Path) -> dict[str, str]:
        return {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "shared"), os.environ.get("PYTHONPATH", "")]).rstrip(
                os.pathsep
            ),
            "OMNIBUS_BUS_URL": self.nats.url,
            "OMNIBUS_STORE_URL": self.valkey.url,
            "OMNIBUS_SIDECAR_SOCKET": str(directory / "sidecar.sock"),
            "OMNIBUS_SIDECAR_NODE": f"{NODE}-{os.getpid()}",
            "OMNIBUS_PLANNER_MODELS": str(directory / "models.json"),
            "OMNIBUS_GATEWAY_PORT": str(self.port),
            "OMNIBUS_GATEWAY_MEDIA_DIR": str(directory / "media"),
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": "error",
            "OMP_NUM_THREADS": "1",
            **self._extra,
        }

    def _specs(self) -> list[ProcessSpec]:
        return [
            self.nats.spec,
            self.valkey.spec,
            self._service("planner", after=("nats", "valkey")),
            self._service("sidecar", after=(), ready=lambda: _listens(str(self.directory / "sidecar.sock"))),
            self._service("gateway", after=("nats", "valkey", "sidecar"), ready=self._gateway_answers),
            *([self._nursery_spec()] if self._nursery else []),
        ]

    def _nursery_spec(self) -> ProcessSpec:
        return ProcessSpec(
            "nursery",
            python("omnibus.up.nursery", self._nursery_socket, *SHARED),
            # numpy's and scipy's libraries would start threads when they are imported.
            env={**self._env, "OPENBLAS_NUM_THREADS": "1"},
            cwd=ROOT,
            ready=lambda: _listens(self._nursery_socket),
            ready_within=120.0,
        )

    def _service(
        self, name: str, after: Sequence[str], ready: Callable[[], object] | None = None, **env: str
    ) -> ProcessSpec:
        return ProcessSpec(
            name,
            python(f"services.{name}"),
            env={**self._env, **env},
            cwd=ROOT,
            ready=ready,  # type: ignore[arg-type]
            after=tuple(after),
        )

    def _executor_specs(self, plan: Plan) -> list[ProcessSpec]:
        return [
            self._executor(name, model.family, model.checkpoint, model.context, option, spec, replica)
            for name, model in plan.models.items()
            for option, spec in model.options.items()
            for replica in range(spec.replicas)
        ]

    def _executor(
        self, model: str, family: str, checkpoint: str, context: int, option: str, spec: Option, replica: int
    ) -> ProcessSpec:
        name = f"{model}/{option}" if spec.replicas == 1 else f"{model}/{option}/{replica}"
        executor = subjects.token(f"{model}-{option}-{replica}")
        self._executors[name] = executor
        env = {
            "ID": executor,
            "MODEL": model,
            "FAMILY": family,
            "CHECKPOINT": checkpoint,
            "CONTEXT": str(context),
            "OPTION": option,
            "COMPONENTS": ",".join(spec.components),
        }
        module = f"services.{spec.service}"
        return ProcessSpec(
            name,
            sprout.command(self._nursery_socket, module) if self._nursery else python(module),
            env={**{f"OMNIBUS_EXECUTOR_{key}": value for key, value in env.items()}, **self._env},
            cwd=ROOT,
            after=("nursery",) if self._nursery else (),
        )

    async def _plan(self) -> Plan:
        store = Store(StoreSettings(url=self.valkey.url))
        try:
            async with asyncio.timeout(30):
                while (plan := await store.plan()) is None:  # noqa: ASYNC110 the store cannot tell us
                    await asyncio.sleep(0.05)
                return plan
        except TimeoutError:
            raise DeadlineExceeded("the planner wrote no plan within 30 s: see its log lines above") from None
        finally:
            await store.close()

    async def ready(self, seconds: float) -> None:
        """Wait until every stage of every model can make progress."""
        missing = ""
        try:
            async with asyncio.timeout(seconds):
                while missing := await asyncio.to_thread(_not_ready, self.url):  # noqa: ASYNC110 HTTP cannot either
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise DeadlineExceeded(f"not ready within {seconds:g} s: {missing}") from None

    async def _exited(self, exit: Exit) -> None:
        executor = self._executors.get(exit.name)
        if executor is not None and self._bus is not None:
            try:
                self._bus.publish(subjects.event(subjects.GONE), executor.encode())
            except OmnibusError:
                return  # gateways find out by its silence

    async def _gateway_answers(self) -> None:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return
            except OSError:
                await asyncio.sleep(0.02)


async def _listens(path: str) -> None:
    while True:
        try:
            _, writer = await asyncio.open_unix_connection(path)
            writer.close()
            return
        except OSError:
            await asyncio.sleep(0.02)


def _not_ready(url: str) -> str:
    """What /readyz says is missing; empty when nothing is."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=2):  # noqa: S310 our own gateway
            return ""
    except urllib.error.HTTPError as error:
        return str(json.loads(error.read()).get("missing"))
    except OSError as error:
        return f"the gateway does not answer ({error})"
