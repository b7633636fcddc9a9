"""Omnibus as processes of one machine: NATS, Valkey, the six services, and the executors of the plan."""

import asyncio
import math
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from omnibus.bus import subjects
from omnibus.bus.nats import NatsBus
from omnibus.cluster.presence import ID, ExecutorKind, GatewayPlans, ReadyExecutors, replica_counts
from omnibus.errors import BadRequest, BusUnavailable, DeadlineExceeded, OmnibusError
from omnibus.metrics.http import remove_stale_files
from omnibus.plan import Plan
from omnibus.process.logs import Log
from omnibus.process.spec import SHARED, ProcessSpec, has_package, python_command, python_path
from omnibus.process.supervise import Exit
from omnibus.process.tuning import copy_tunables
from omnibus.service import until_cancelled
from omnibus.settings import BusSettings, StoreSettings, UpSettings, read_settings
from omnibus.store import Store
from omnibus.up import infra
from omnibus.up.agent import NodeAgent, executor_maker
from omnibus.up.disk import StreamDisk
from omnibus.up.executors import Executors, RoleSwitcher, grace_seconds, process_specs
from omnibus.up.fork_server import can_fork, can_fork_executors
from omnibus.up.fork_servers import (
    EXECUTORS,
    EXECUTORS_SOCKET,
    SERVICE_MODULES,
    SERVICES,
    SERVICES_SOCKET,
    executor_modules,
    fork_server_spec,
)
from omnibus.up.health import Endpoints, not_ready, wait_for_port, wait_for_socket
from omnibus.up.listening import ListenOptions
from omnibus.up.machine import describe_machine, sidecar_environment
from omnibus.up.nodes import NODE, Nodes, sidecar_name
from omnibus.up.ports import held_ports, require_free_port
from omnibus.up.runs import RunDirectory, RunState
from omnibus.up.supervisor import Supervisor
from omnibus.up.tls import trusted_context
from omnibus.up.watchdog import Watchdog, find_forked_pid

PLAN_TIMEOUT_SECONDS = 120.0  # seconds: plans that are simulated take a busy machine longer than half a minute
READY_TIMEOUT_SECONDS = 180.0  # seconds for all executors to load
LOG_FILE = "up.log"  # of the run's directory: what all its processes wrote
MEDIA_DIR = "OMNIBUS_GATEWAY_MEDIA_DIR"
APPS_DIR = "OMNIBUS_GATEWAY_APPS_DIR"
APP_ERRORS = "OMNIBUS_GATEWAY_APP_ERRORS"
LOGS = "OMNIBUS_GATEWAY_LOG_FILE"
ADMIN = "OMNIBUS_GATEWAY_ADMIN_TOKEN"
CERTIFICATE = "OMNIBUS_GATEWAY_TLS_CERT"
STORE_SECRET = "OMNIBUS_STORE_SECRET"  # noqa: S105 a name
#: The planner's setting that assigns executors to agents.
RECONCILE, AGENTS = "OMNIBUS_PLANNER_RECONCILE", "agents"
#: Where services say at which port Prometheus finds them; by default a directory of the run.
METRICS_DIR = "OMNIBUS_SERVICE_METRICS_DIR"


class Declared(NamedTuple):
    """The text of a declarations file, and what is added to every service's environment."""

    models: str
    env: Mapping[str, str]


#: Declares the models. The argument is the socket of the executors' fork server, empty if there is none.
Declare = Callable[[str], Awaitable[Declared]]


class Stack:
    """Context with the whole system: ``async with Stack(models) as stack``. No process is left afterwards.

    ``models`` is the text of a declarations file, or a function that is awaited before NATS, Valkey and the services
    start. ``env`` is added to every service's environment. The first of the
    ``gateways`` listens on ``port``, 0 for a free one. The others listen on free ports. Apps may be registered from
    directories below ``apps_dir``, by default the current one. Gateways and executors are spread over ``nodes``, each
    with its own sidecar and arena. With ``listen``, other machines may join, and the planner assigns executors to all
    of them. The system is then ready without its executors.

    On Linux, services are forked from a fork server, and executors with the default engine from another one.
    ``fork_executors`` is whether there are any. With ``OMNIBUS_UP_FORK_SERVER=0``, and on other systems, they are
    separate processes. ``name`` is that of the run, by default its port. For ``passing`` see ``RunState``. ``set_up``
    is awaited when all executors serve, before the run is ready. ``report`` is called with the current step, the number
    of executors that have loaded their weights, and their total.
    """

    def __init__(  # noqa: PLR0913 each is an option of the command
        self,
        models: str | Declare,
        *,
        port: int = 0,
        gateways: int = 1,
        nodes: int = 1,
        listen: ListenOptions | None = None,
        apps_dir: Path | None = None,
        log: Log | None = None,
        env: Mapping[str, str] | None = None,
        fork_executors: bool = True,
        passing: bool = False,
        name: str = "",
        set_up: Callable[["Stack"], Coroutine[Any, Any, None]] | None = None,
        report: Callable[[str, int, int], None] = lambda what, done, count: None,
    ) -> None:
        if gateways < 1:
            raise BadRequest(f"{gateways} gateways: one at least must run")
        if nodes < 1:
            raise BadRequest(f"{nodes} nodes: there is one at least")
        if listen is not None and nodes > 1:
            raise BadRequest("--nodes is for nodes of one machine: leave it out with --listen")
        environment = {**os.environ, **(env or {})}
        self.apps_dir = Path(apps_dir or environment.get(APPS_DIR) or Path.cwd()).resolve()
        self.admin_token = environment.get(ADMIN) or secrets.token_urlsafe(32)
        self.own_token = not environment.get(ADMIN)
        metrics = os.environ.get(METRICS_DIR)
        self._metrics_dir = str(Path(metrics).absolute()) if metrics else ""  # services have another working directory
        self._store_secret = environment.get(STORE_SECRET) or secrets.token_urlsafe(32)
        self.certificate = environment.get(CERTIFICATE, "")
        self._believed = trusted_context(self.certificate)
        self._forks_services, self._forks_executors = (
            can_fork(environment),
            fork_executors and can_fork_executors(environment),
        )
        self._models = models
        self._log = log or Log()
        self._extra = dict(env or {})
        self._passing = passing
        self._name = name
        self._set_up = set_up
        self._report = report
        self._started = time.time()
        self._executors = self._loaded = 0
        self._planned: Mapping[ExecutorKind, int] = {}
        self._ready = ReadyExecutors()
        self._requested_port = port
        self._gateways = gateways
        self._nodes = Nodes(nodes, listen.node.name if listen is not None else "")
        self._listen = listen
        self._agent: NodeAgent | None = None
        self._stack = AsyncExitStack()
        self._bus: NatsBus | None = None

    async def __aenter__(self) -> "Stack":
        if not has_package("omnibus_gateway"):
            raise BadRequest("the services are not installed: run `pip install 'omnibus-serve[all,local]'`")
        try:
            await self._start_system()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def _start_system(self) -> None:
        run = self._run = self._stack.enter_context(RunDirectory(name=self._name))
        self.directory = run.path
        self._stack.enter_context(self._log.copied_to(run.path / LOG_FILE))
        self.metrics_dir = self._metrics_dir or str(run.path / "metrics")
        self._services_socket = str(run.path / SERVICES_SOCKET) if self._forks_services else ""
        self._executors_socket = str(run.path / EXECUTORS_SOCKET) if self._forks_executors else ""
        self._models_file = str(run.path / "models.json")
        self._nodes.prepare(run.path)
        self._choose_ports()
        self._env = self._service_environment()
        self._endpoints = Endpoints(self._env[METRICS_DIR])
        self.supervisor = Supervisor(
            self._fork_server_specs() if callable(self._models) else self._service_specs(),
            log=self._log,
            on_exit=self._announce_exit,
            shm_prefix=self._shm_prefix,
        )
        if not callable(self._models):
            self._write_models(self._models)
        await self._stack.enter_async_context(self.supervisor)
        if callable(self._models):
            await self.supervisor.unless_over(self._declare_models(self._models))
        self._start_watchdogs()
        self._publish_state()  # early: whoever cleans up after a kill needs to know what there was
        bus = BusSettings(url=self.nats.url, tls_ca=self._listen.certificate if self._listen is not None else "")
        self._bus = await NatsBus.connect(bus, "supervisor")
        self._stack.push_async_callback(self._bus.drain)
        if self._listen is not None:
            await self.supervisor.unless_over(self._start_agent(self._listen))
        else:
            await self.supervisor.unless_over(self._start_executors())
            await self.supervisor.unless_over(self.wait_until_ready(READY_TIMEOUT_SECONDS))
        self.supervisor.confirm_all()
        if self._set_up is not None:
            await self.supervisor.unless_over(self._set_up(self))
        self._publish_state(ready=True)

    async def _declare_models(self, declare: Declare) -> None:
        """Declare the models, and start the other servers and services."""
        declared = await declare(self._executors_socket)
        self._extra |= declared.env
        self._env |= declared.env
        self._write_models(declared.models)
        await self.supervisor.add(*(spec for spec in self._service_specs() if spec.name not in self.supervisor.specs))

    def _write_models(self, models: str) -> None:
        Path(self._models_file).write_text(models)

    def _start_watchdogs(self) -> None:
        """Restart hanging processes, and the NATS server after its disk was full."""
        up = read_settings(UpSettings, {**os.environ, **self._env})
        disk = StreamDisk(self.supervisor, self._log, "nats", self.directory, self.nats.ports[1])
        watchdog = Watchdog(self.supervisor, self._log, up.silent, up.frozen or math.inf)
        works = [disk.run(), *([watchdog.run()] if up.silent > 0 else [])]
        for work in works:
            watching = asyncio.create_task(work)
            watching.add_done_callback(self._on_watchdog_end)
            self._stack.push_async_callback(until_cancelled, watching)

    def _on_watchdog_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._log.write_line("omnibus", f"the watchdog for hanging processes failed: {task.exception()!r}")

    def _choose_ports(self) -> None:
        """Choose all ports at once, so that they differ."""
        if self._requested_port:
            require_free_port(self._requested_port)
        ports = self._stack.enter_context(held_ports(self._gateways + 4))
        free = [port for port in ports if port != self._requested_port]
        # Loopback is open to every user of this machine.
        word, other = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        up = read_settings(UpSettings, {**os.environ, **self._extra})
        listen = self._listen
        self.nats = infra.prepare_nats(
            self.directory,
            port=(listen.port if listen is not None else 0) or free.pop(),
            monitor_port=free.pop(),
            password=word,
            cores=up.nats_cores,
            access=listen.bus_access if listen is not None else infra.LOCAL_ACCESS,
        )
        self.valkey = infra.prepare_valkey(
            self.directory, port=free.pop(), password=other, durable=True, max_bytes=up.store_bytes
        )
        self.ports = [self._requested_port or free.pop(), *free[: self._gateways - 1]]
        scheme = "https" if self.certificate else "http"
        self.urls = [f"{scheme}://127.0.0.1:{port}" for port in self.ports]
        self.port, self.url = self.ports[0], self.urls[0]

    async def _start_agent(self, listen: ListenOptions) -> None:
        """Start the agent of this machine, which runs the executors that the planner assigns to it."""
        facts, devices = describe_machine(listen.node, listen.host)
        answers = self._endpoints.service_answers
        maker = executor_maker(self._env, self._executors_socket, answers)
        self._agent = NodeAgent(self.supervisor, self._log, maker, answers, facts, devices)
        await self._agent.start(self.bus)
        self._stack.push_async_callback(self._agent.close)

    async def _start_executors(self) -> None:
        store = Store(StoreSettings(url=self.valkey.url, secret=self._store_secret))
        self._stack.push_async_callback(store.close)
        await self._endpoints.listen(self.bus)
        ready, gateways = self._ready, GatewayPlans()
        roles = RoleSwitcher(self.bus, ready, self._log)
        executors = Executors(self.supervisor, self._log, self._executor_specs, ready, gateways, roles)
        await ready.listen(self.bus, executors.confirm_ready)
        await gateways.listen(self.bus)
        self._stack.push_async_callback(executors.close)
        plan = await _first_plan(store)
        self._planned = replica_counts(plan.models)
        self._executors = sum(self._planned.values())
        await executors.start(plan, store)

    def _executor_specs(self, *plans: Plan) -> dict[str, ProcessSpec]:
        """Return the executors that ``plans`` require, by the names of their processes."""
        socket = self._executors_socket
        specs = process_specs(*plans, env=self._env, fork_server=socket, switches=True)
        alive = self._endpoints.executor_answers
        return {
            name: self._nodes.place_executor(replace(spec, alive=partial(alive, spec.env[ID])))
            for name, spec in specs.items()
        }

    @property
    def bus(self) -> NatsBus:
        """Return the supervisor's own connection to the bus."""
        if self._bus is None:
            raise BusUnavailable("the stack is not up")
        return self._bus

    @property
    def pids(self) -> dict[str, int]:
        """Return the process ids of all running processes by name. For a forked process, this is not the id of its
        proxy."""
        return {name: find_forked_pid(pid) for name, pid in self.supervisor.pids.items()}

    def _publish_state(self, *, ready: bool = False) -> None:
        self.state = RunState(
            directory=str(self.directory),
            pid=os.getpid(),
            started=self._started,
            nats_url=self.nats.url,
            store_url=self.valkey.url,
            monitor_url=self.nats.monitor,
            gateway_url=self.url,
            ports={_gateway_name(index): port for index, port in enumerate(self.ports)},
            pids=self.pids,
            shm_prefix=self._shm_prefix,
            bus_ca=self._listen.certificate if self._listen is not None else "",
            join=self._listen.join_file(self.nats.ports[0]) if self._listen is not None else None,
            admin_token=self.admin_token,
            store_secret=self._store_secret,
            apps_dir=str(self.apps_dir),
            certificate=self.certificate,
            name=self._name or str(self.port),
            passing=self._passing,
            ready=ready,
            executors=self._executors,
            loaded=self._loaded,
        )
        self._run.write_state(self.state)

    @property
    def _shm_prefix(self) -> str:
        """Return the prefix of this run's shared memory."""
        return f"omnibus-{NODE}-{os.getpid()}" if self._listen is None else f"omnibus-{self._listen.node.name}"

    def _service_environment(self) -> dict[str, str]:
        return {
            "PYTHONPATH": python_path(),
            "OMNIBUS_BUS_URL": self.nats.url,
            "OMNIBUS_BUS_USER": "",  # that of the URL
            "OMNIBUS_BUS_PASSWORD": "",
            "OMNIBUS_STORE_URL": self.valkey.url,
            **({"OMNIBUS_BUS_TLS_CA": self._listen.certificate} if self._listen and self._listen.certificate else {}),
            **self._nodes.client_env(0),
            "OMNIBUS_PLANNER_MODELS": self._models_file,
            MEDIA_DIR: str(self.directory / "media"),
            "OMNIBUS_EXECUTOR_APPS_DIR": str(self.apps_dir),
            METRICS_DIR: self.metrics_dir,
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": "error",
            "OMP_NUM_THREADS": "1",
            **self._extra,
            **copy_tunables({**os.environ, **self._extra}),
        }

    def _service_specs(self) -> list[ProcessSpec]:
        return [
            self.nats.spec,
            self.valkey.spec,
            self._service_spec("planner", after=("nats", "valkey"), env=self._planner_env()),
            *(self._sidecar_spec(index) for index in range(self._nodes.count)),
            *(self._gateway_spec(index, port) for index, port in enumerate(self.ports)),
            *self._fork_server_specs(),
        ]

    def _fork_server_specs(self) -> list[ProcessSpec]:
        services = self._fork_server_spec(SERVICES, self._services_socket, SERVICE_MODULES)
        executors = self._fork_server_spec(EXECUTORS, self._executors_socket, executor_modules(self._models_file))
        return [*([services] if self._forks_services else []), *([executors] if self._forks_executors else [])]

    def _planner_env(self) -> dict[str, str]:
        reconcile = {RECONCILE: AGENTS} if self._listen is not None else {}
        return {STORE_SECRET: self._store_secret, **reconcile}

    def _sidecar_spec(self, index: int) -> ProcessSpec:
        listen = self._listen
        peers = sidecar_environment(self.directory, listen.host, listen.sidecar_secret) if listen is not None else {}
        return self._service_spec(
            "sidecar",
            name=sidecar_name(index),
            after=("nats",) if self._nodes.count > 1 or peers else (),
            ready=lambda: wait_for_socket(self._nodes.socket(index)),
            env={**self._nodes.sidecar_env(index), **peers},
        )

    def _gateway_spec(self, index: int, port: int) -> ProcessSpec:
        return self._service_spec(
            "gateway",
            name=_gateway_name(index),
            after=("nats", "valkey", sidecar_name(index % self._nodes.count)),
            ready=lambda: wait_for_port(port),
            env={
                **self._nodes.client_env(index % self._nodes.count),
                **self._media_env(index % self._nodes.count),
                "OMNIBUS_GATEWAY_PORT": str(port),
                APPS_DIR: str(self.apps_dir),
                LOGS: str(self.directory / LOG_FILE),
                APP_ERRORS: self._env.get(APP_ERRORS) or os.environ.get(APP_ERRORS, "true"),
                ADMIN: self.admin_token,
                STORE_SECRET: self._store_secret,
            },
        )

    def _media_env(self, node: int) -> Mapping[str, str]:
        """Return the media directory of gateways on ``node``. Each machine has its own, unless it is set for all."""
        return {} if MEDIA_DIR in self._extra or not node else {MEDIA_DIR: str(self.directory / f"media-{node}")}

    def _fork_server_spec(self, name: str, socket: str, modules: Sequence[str]) -> ProcessSpec:
        return fork_server_spec(name, socket, modules, self._env)

    def _service_spec(
        self,
        service: str,
        *,
        name: str = "",
        after: Sequence[str] = (),
        ready: Callable[[], Awaitable[None]] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ProcessSpec:
        return ProcessSpec(
            name or service,
            python_command(f"omnibus_{service}"),
            env={**self._env, **(env or {})},
            cwd=SHARED,
            fork_server=self._services_socket,
            starts_alone=True,
            ready=ready,
            alive=self._endpoints.service_answers,
            after=(*after, *([SERVICES] if self._forks_services else [])),
            grace=grace_seconds(self._env, service),
        )

    async def wait_until_ready(self, seconds: float) -> None:
        """Wait until every gateway reports that all stages can make progress. Raises ``DeadlineExceeded`` after
        ``seconds``."""
        missing = ""
        try:
            async with asyncio.timeout(seconds):
                for url in self.urls:
                    while missing := await asyncio.to_thread(not_ready, url, self._believed):
                        self._report_loading()
                        await asyncio.sleep(0.1)
        except TimeoutError:
            raise DeadlineExceeded(f"not ready within {seconds:g} s: {missing}") from None

    def _report_loading(self) -> None:
        """Report how many executors are ready. Also publish the number for commands that wait for this run."""
        ready_count = sum(min(count, self._ready.count_ready(kind)) for kind, count in self._planned.items())
        if self._executors:
            self._report("loading weights", ready_count, self._executors)
        if ready_count != self._loaded:
            self._loaded = ready_count
            self._publish_state(ready=self.state.ready)

    async def _announce_exit(self, exit: Exit) -> None:
        remove_stale_files(self.metrics_dir)
        if self._agent is not None:
            self._agent.note_exit(exit)
            return
        spec = self.supervisor.specs.get(exit.name)
        executor = spec.env.get(ID) if spec is not None else None
        if executor is not None and self._bus is not None:
            try:
                self._bus.publish(subjects.event_subject(subjects.GONE), executor.encode())
            except OmnibusError:
                return  # gateways find out by its silence


def _gateway_name(index: int) -> str:
    """Return the name of a gateway's process."""
    return f"gateway-{index}" if index else "gateway"


async def _first_plan(store: Store) -> Plan:
    try:
        async with asyncio.timeout(PLAN_TIMEOUT_SECONDS):
            while (plan := await store.plan()) is None:  # noqa: ASYNC110 the store cannot tell us
                await asyncio.sleep(0.05)
            return plan
    except TimeoutError:
        raise DeadlineExceeded(
            f"the planner wrote no plan within {PLAN_TIMEOUT_SECONDS:g} s: see its log lines above"
        ) from None
