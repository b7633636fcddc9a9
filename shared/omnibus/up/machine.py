"""A machine that joins a running Omnibus: its sidecar, fork server, watchdog and agent."""

import asyncio
import math
import os
import socket
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

from omnibus.bus.nats import BusRefused, NatsBus
from omnibus.bus.permissions import NODE_USER
from omnibus.bus.subjects import subject_token
from omnibus.cluster.agents import AgentStatus
from omnibus.environment import count_processors
from omnibus.errors import BadRequest, BusUnavailable, Conflict, Unauthorized
from omnibus.metrics.http import remove_stale_files
from omnibus.process.logs import Log
from omnibus.process.memory import memory_limit
from omnibus.process.spec import SHARED, ProcessSpec, has_package, python_command, python_path
from omnibus.process.supervise import Exit
from omnibus.process.tuning import copy_tunables
from omnibus.service import until_cancelled
from omnibus.settings import SidecarSettings, UpSettings, read_settings
from omnibus.up.agent import NodeAgent, executor_maker, require_free_name
from omnibus.up.executors import grace_seconds
from omnibus.up.fork_server import can_fork_executors
from omnibus.up.fork_servers import EXECUTOR_MODULES, EXECUTORS, EXECUTORS_SOCKET, fork_server_spec
from omnibus.up.gpus import find_gpus
from omnibus.up.health import Endpoints, wait_for_socket
from omnibus.up.join import JoinFile, write_private
from omnibus.up.runs import registry_path, take_lock
from omnibus.up.supervisor import Supervisor
from omnibus.up.watchdog import Watchdog
from omnibus.urls import redact_url

#: Executors without a GPU for each processor: most of them wait most of the time. A heartbeat lists all of them, so
#: that their number is limited.
SLOTS_PER_PROCESSOR, MAX_SLOTS = 4, 256
_BUS_RETRY_SECONDS = 2.0
_CONNECT_SECONDS = 5.0
METRICS_DIR = "OMNIBUS_SERVICE_METRICS_DIR"
APPS_DIR = "OMNIBUS_EXECUTOR_APPS_DIR"


class NodeOptions(NamedTuple):
    """Options of a node. ``slots`` below 0 stands for ``SLOTS_PER_PROCESSOR`` of each; ``host`` may be empty."""

    name: str
    host: str = ""
    slots: int = -1
    gpu: str = ""
    labels: Mapping[str, str] = {}


def describe_machine(options: NodeOptions, address: str) -> tuple[AgentStatus, tuple[str, ...]]:
    """Return the resources of this machine, and the names of its GPUs."""
    gpus = find_gpus()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    status = AgentStatus(
        options.name,
        boot=0,
        gpu=(options.gpu or gpus.kind) if gpus.devices else "",
        gpus=len(gpus.devices),
        gpu_gb=gpus.memory_gb,
        slots=min(MAX_SLOTS, options.slots if options.slots >= 0 else SLOTS_PER_PROCESSOR * count_processors()),
        memory_bytes=min(memory, memory_limit() or memory),
        address=address,
        labels=dict(options.labels),
    )
    return status, gpus.devices


def local_address(server: tuple[str, int]) -> str:
    """Return the address of this machine from which ``server`` is reached. Raises ``BadRequest``."""
    try:
        family, kind, *_, address = socket.getaddrinfo(*server, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise BadRequest(f"no route to {server[0]} ({error}): set this machine's address with --host") from error


def sidecar_environment(directory: Path, host: str, secret: str) -> dict[str, str]:
    """Return the environment of a sidecar that serves other nodes on ``host``. Writes its ``secret`` to a file."""
    file = directory / "nodes.secret"
    write_private(file, secret.encode())
    return {"OMNIBUS_SIDECAR_HOST": host, "OMNIBUS_SIDECAR_SECRET_FILE": str(file)}


class JoinedMachine:
    """Context with the processes of one node: ``async with JoinedMachine(join, options)``. None is left afterwards.

    Its files are in a private directory, which it holds a lock of.
    """

    def __init__(self, join: JoinFile, options: NodeOptions, log: Log | None = None) -> None:
        self._join = join
        self._options = options
        self._log = log or Log()
        self._stack = AsyncExitStack()
        self.directory = registry_path().parent / "nodes" / subject_token(options.name)

    async def __aenter__(self) -> "JoinedMachine":
        if not has_package("omnibus_sidecar"):
            raise BadRequest("the services are not installed: run `pip install 'omnibus-serve[all,local]'`")
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        self._open_directory()
        host = self._options.host or local_address(self._join.bus_host)
        self._env = self._service_environment(host)
        self._socket = str(self.directory / EXECUTORS_SOCKET) if can_fork_executors({**os.environ, **self._env}) else ""
        bus = await self._connect_bus()
        self._stack.push_async_callback(bus.drain)
        await require_free_name(bus, self._options.name)
        self._endpoints = Endpoints(self._env[METRICS_DIR])
        arena = f"omnibus-{self._options.name}"
        self.supervisor = Supervisor(self._specs(), log=self._log, on_exit=self._on_exit, shm_prefix=arena)
        port = read_settings(SidecarSettings, {**os.environ, **self._env}).port
        facts, devices = describe_machine(self._options, f"{host}:{port}" if port else host)
        maker = executor_maker(self._env, self._socket, self._endpoints.service_answers)
        self.agent = NodeAgent(self.supervisor, self._log, maker, self._endpoints.service_answers, facts, devices)
        await self._stack.enter_async_context(self.supervisor)
        self.supervisor.confirm_all()
        self._start_watchdog()
        await self.supervisor.unless_over(self.agent.start(bus))
        self._stack.push_async_callback(self.agent.close)

    def _open_directory(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = take_lock(self.directory)
        if lock is None:
            raise Conflict(f"a node named {self._options.name} runs on this machine: choose another --name")
        self._stack.callback(os.close, lock)

    async def _connect_bus(self) -> NatsBus:
        """Wait for the bus. Raises ``Unauthorized`` if it rejects the credentials."""
        ca = self.directory / "bus-ca.pem"
        write_private(ca, self._join.ca.encode())
        settings = self._join.bus_settings(str(ca), _CONNECT_SECONDS)
        while True:
            try:
                return await NatsBus.connect(settings, f"agent-{self._options.name}")
            except BusRefused as error:
                bus = redact_url(self._join.bus)
                raise Unauthorized(
                    f"the bus at {bus} refuses the join file: write a new one there with `omnibus node token`"
                ) from error
            except BusUnavailable as error:
                self._log.write_line("agent", f"{error.message}; trying again")
                await asyncio.sleep(_BUS_RETRY_SECONDS)

    def _service_environment(self, host: str) -> dict[str, str]:
        environment = {
            "PYTHONPATH": python_path(),
            "OMNIBUS_BUS_URL": self._join.bus,
            "OMNIBUS_BUS_USER": NODE_USER,
            "OMNIBUS_BUS_PASSWORD": self._join.bus_password,
            **({"OMNIBUS_BUS_TLS_CA": str(self.directory / "bus-ca.pem")} if self._join.ca else {}),
            "OMNIBUS_SIDECAR_SOCKET": str(self.directory / "sidecar.sock"),
            "OMNIBUS_SIDECAR_NODE": self._options.name,
            **sidecar_environment(self.directory, host, self._join.sidecar_secret),
            APPS_DIR: os.environ.get(APPS_DIR) or os.getcwd(),
            METRICS_DIR: os.environ.get(METRICS_DIR) or str(self.directory / "metrics"),
            "HF_HUB_OFFLINE": os.environ.get("HF_HUB_OFFLINE", "1"),
            "TRANSFORMERS_VERBOSITY": "error",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        return {**environment, **copy_tunables(os.environ)}

    def _specs(self) -> list[ProcessSpec]:
        sidecar = ProcessSpec(
            "sidecar",
            python_command("omnibus_sidecar"),
            env=self._env,
            cwd=SHARED,
            ready=partial(wait_for_socket, self._env["OMNIBUS_SIDECAR_SOCKET"]),
            alive=self._endpoints.service_answers,
            grace=grace_seconds(self._env, "sidecar"),
        )
        fork_server = fork_server_spec(EXECUTORS, self._socket, EXECUTOR_MODULES, self._env)
        return [sidecar, *([fork_server] if self._socket else [])]

    def _start_watchdog(self) -> None:
        up = read_settings(UpSettings)
        if up.silent > 0:
            watching = asyncio.create_task(Watchdog(self.supervisor, self._log, up.silent, up.frozen or math.inf).run())
            self._stack.push_async_callback(until_cancelled, watching)

    async def _on_exit(self, exit: Exit) -> None:
        remove_stale_files(self._env[METRICS_DIR])
        self.agent.note_exit(exit)
