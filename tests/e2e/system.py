"""One running Omnibus, started by ``omnibus up`` and observed from outside."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import openai
import psutil

from omnibus.bus import subjects
from omnibus.bus.messages import ExecutorStatus
from omnibus.bus.nats import NatsBus
from omnibus.cluster.presence import follow_events, replica_counts
from omnibus.families import catalog
from omnibus.process.spec import PACKAGE_PATH
from omnibus.process.tuning import die_with_parent
from omnibus.recording.records import split_records
from omnibus.settings import BusSettings, StoreSettings
from omnibus.store import Store
from omnibus.tensors.client import TensorClient
from omnibus.up import runs
from omnibus.up.nodes import sidecar_name
from omnibus.up.shm import SHARED_MEMORY
from omnibus.up.stack import APP_ERRORS, STORE_SECRET
from omnibus.up.watchdog import find_forked_pid
from omnibus_planner.declared.declarations_file import build_static_plans
from omnibus_planner.declared.model import DeclaredModel
from tests.e2e import warm

ROOT = Path(__file__).parents[2]
VL, OMNI = "qwen2.5-vl-tiny", "qwen2.5-omni-tiny"

#: Nodes of systems whose tests name no number: `make test-nodes` runs tests of one node over several.
NODES = int(os.environ.get("OMNIBUS_TEST_NODES", "1"))
#: Bytes that cross within messages there: tensors of tiny models are so small that otherwise few would be pulled.
_INLINE_BYTES = 256

_UP_WITHIN = 240.0  # seconds; a dozen processes that import torch at once
_STOP_WITHIN = 40.0  # seconds
_BACK_WITHIN = 90.0  # seconds for an executor that was killed to load again
#: Seconds until leases are released on a busy machine; unreleased ones expire later.
LEASES_WITHIN = 5.0
_SHOWN = 12_000  # characters of the log that a failure prints


def declare_model(family: str, checkpoint: Path, **changes: Any) -> dict[str, Any]:
    """Usual deployment of a tiny model, with ``changes`` such as ``options``."""
    return {**catalog.untrained_declaration(family, str(checkpoint)), **changes}


def _executor_ids(models: Mapping[str, Any]) -> set[str]:
    """Planned ids of the executors of models with options: with cells, and without shared encoders."""
    option_models = {name: model for name, model in models.items() if model.get("options")}
    counts = {
        (name, option): spec.get("replicas", 1)
        for name, m in option_models.items()
        for option, spec in m["options"].items()
    }
    if len(option_models) > 1 or any(model.get("cells") for model in option_models.values()):
        plans = build_static_plans(msgspec.convert(models, dict[str, DeclaredModel]))
        planned_counts = {
            kind[:2]: count for kind, count in replica_counts(plans).items() if kind.model in option_models
        }
        counts = {**{key: count for key, count in counts.items() if key[0] not in plans}, **planned_counts}
    return {
        subjects.subject_token(f"{name}-{option}-{replica}")
        for (name, option), count in counts.items()
        for replica in range(count)
    }


def command_line(process: psutil.Process) -> list[str]:
    """Command line of ``process``, or empty if it has just ended."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


@contextlib.contextmanager
def start_system(
    directory: Path,
    models: Mapping[str, Any],
    *flags: str,
    more: Mapping[str, Any] | None = None,
    **settings: str,
) -> Iterator["System"]:
    """Run ``models`` until the block ends.

    ``flags`` are those of ``omnibus up``, ``settings`` environment variables. Models of one checkpoint have separate
    executors, unless they set ``share_equal``. ``more`` is declared in addition. Fails if a process, a port or shared
    memory is left afterwards. Executors and services get their libraries from the session's fork server, see
    ``tests.e2e.warm``.
    """
    if NODES > 1 and "--nodes" not in flags:
        flags = (*flags, "--nodes", str(NODES))
        settings.setdefault("OMNIBUS_EXECUTOR_INLINE", str(_INLINE_BYTES))
    system = System(directory, models, settings, flags, more, warm.may_start_warm(settings))
    try:
        system.start()
        yield system
    except BaseException:
        print(system.log[-_SHOWN:])
        raise
    finally:
        leftovers = system.stop()
    assert leftovers == []


class System:
    """Processes of one ``omnibus up``; ``is_warm``: its fork servers import nothing, see ``tests.e2e.warm``."""

    def __init__(
        self,
        directory: Path,
        models: Mapping[str, Any],
        settings: Mapping[str, str],
        flags: Sequence[str] = (),
        more: Mapping[str, Any] | None = None,
        is_warm: bool = False,
    ) -> None:
        self._flags = flags
        self._nodes = int(flags[flags.index("--nodes") + 1]) if "--nodes" in flags else 1
        self._is_warm = is_warm
        models = {name: {"share_equal": False, **model} for name, model in models.items()}
        models_file = directory / "models.json"
        models_file.write_text(json.dumps({**(more or {}), "models": models}))
        self._models = ["--models", str(models_file)] if models else ["--no-models"]
        paths = f"{ROOT}:{PACKAGE_PATH}"
        # A private directory for the state file, to separate this from other runs of this user.
        own = {"PYTHONPATH": paths, "XDG_RUNTIME_DIR": str(directory), STORE_SECRET: token_hex(16), APP_ERRORS: "false"}
        # A frozen process stays until the test resumes or kills it.
        own["OMNIBUS_UP_FROZEN"] = "60"
        self.env = {**os.environ, **own, **settings}
        planned = "apps" in (more or {})  # then the plan names the executors
        self.executors = set() if planned else _executor_ids(models)
        self._process: subprocess.Popen[str] | None = None
        self._lines: list[str] = []
        self._up = threading.Event()

    # Life

    def start(self) -> None:
        while not self._begin():  # another program may take a port between its choice and its use
            # NATS and uvicorn write it in small letters.
            assert "address already in use" in self.log.lower(), f"ended at once: {self._last_words()}"
            self._lines.clear()
        self.state = runs.read_state(environ=self.env)
        self.urls = [
            f"http://127.0.0.1:{port}" for name, port in self.state.ports.items() if name.startswith("gateway")
        ]
        self.url = self.state.gateway_url
        if self.executors:
            asyncio.run(self.whole(_UP_WITHIN))

    def _begin(self) -> bool:
        self._up.clear()
        self._process = self.command("up", "--port", "0", *self._models, *self._flags)
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()
        assert self._up.wait(_UP_WITHIN), "not up in time"
        return "Omnibus is up" in self.log

    def command(self, *arguments: str) -> "subprocess.Popen[str]":
        """Run ``omnibus <arguments>`` against this system, output and errors in one pipe."""
        return subprocess.Popen(
            self.program(*arguments),
            env=self.env,
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent(),
        )

    def program(self, *arguments: str) -> Sequence[str]:
        """The command line of ``omnibus <arguments>``."""
        if not self._is_warm:
            return (sys.executable, "-u", "-m", "omnibus.cli", *arguments)
        return warm.omnibus_command(*arguments)

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.append(line)
            if line.startswith("Omnibus is up"):
                self._up.set()
        self._up.set()

    def _last_words(self) -> str:
        """The last lines of the log, the very last one first: summaries show only one."""
        return "".join(reversed(self._lines[-20:]))

    @property
    def log(self) -> str:
        """Output of all processes so far."""
        return "".join(self._lines)

    def stop(self) -> list[str]:
        """Stop everything by SIGTERM; return leftovers in words. It is idempotent."""
        process = self._process
        if process is None or process.poll() is not None:
            return []
        family = self.processes()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            return ["the supervisor did not stop"]
        return self._left(family) if hasattr(self, "state") else []

    def _left(self, family: Sequence[psutil.Process]) -> list[str]:
        alive = [f"process {one.pid}" for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
        open_ports = [f"port {port}" for port in self.ports if is_listening(port)]
        segments = [path.name for path in SHARED_MEMORY.glob(f"{self.state.shm_prefix}*")]
        directory = [self.state.directory] if Path(self.state.directory).exists() else []
        return [*alive, *open_ports, *segments, *directory]

    @property
    def ports(self) -> list[int]:
        state = self.state
        urls = [state.nats_url, state.store_url, state.monitor_url, *self.urls]
        return [port for url in urls if (port := urlsplit(url).port) is not None]

    # Processes

    def processes(self) -> list[psutil.Process]:
        """All processes of this system, except the supervisor."""
        by_pid: dict[int, psutil.Process] = {}
        for command in self.commands():
            for pid in {command.pid, find_forked_pid(command.pid)}:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process = psutil.Process(pid)
                    by_pid |= {one.pid: one for one in (process, *process.children(recursive=True))}
        return list(by_pid.values())

    def commands(self) -> list[psutil.Process]:
        """Processes that the supervisor started, or that its fork servers forked for it."""
        assert self._process is not None
        commands = psutil.Process(find_forked_pid(self._process.pid)).children()
        forked = []
        for command in commands:
            with contextlib.suppress(psutil.NoSuchProcess):
                started = psutil.Process(find_forked_pid(command.pid))
                forked += started.children() if "omnibus.up.fork_server" in command_line(started) else []
        return [*commands, *forked]

    def server(self, name: str) -> psutil.Process:
        """The process of ``nats-server`` or ``valkey-server``."""
        return next(one for one in self.processes() if name in " ".join(command_line(one)[:1]))

    def gateway(self, index: int) -> psutil.Process:
        """The process of a gateway."""
        return psutil.Process(find_forked_pid(self._gateway_command(index).pid))

    def sidecar(self, node: int = 0) -> psutil.Process:
        """Sidecar process of a node, by index from 0."""
        sidecars = (one for one in self.commands() if "omnibus_sidecar" in command_line(one))
        name = self.node_name(node)
        command = next(one for one in sidecars if one.environ()["OMNIBUS_SIDECAR_NODE"] == name)
        return psutil.Process(find_forked_pid(command.pid))

    def gateway_environment(self, index: int) -> dict[str, str]:
        """The environment that a gateway was started with."""
        return dict(self._gateway_command(index).environ())

    def _gateway_command(self, index: int) -> psutil.Process:
        """Process started as a gateway: itself, or its placeholder if forked."""
        port = str(urlsplit(self.urls[index]).port)
        gateways = (one for one in self.commands() if "omnibus_gateway" in command_line(one))
        return next(one for one in gateways if one.environ()["OMNIBUS_GATEWAY_PORT"] == port)

    async def statuses(self, bus: NatsBus) -> AsyncGenerator[ExecutorStatus, None]:
        """Stream the heartbeats of executors from now on."""
        queue: asyncio.Queue[ExecutorStatus] = asyncio.Queue()
        stops = await follow_events(bus, {subjects.EXECUTOR: queue.put_nowait})
        bus.publish(subjects.event_subject(subjects.CENSUS), b"{}")
        try:
            while True:
                yield await queue.get()
        finally:
            for stop in stops:
                await stop()

    async def whole(self, within: float = _BACK_WITHIN, only: Sequence[str] = ()) -> dict[str, int]:
        """Wait until all executors (or ``only`` these) are ready; return their process ids."""
        expected_ids = set(only) or self.executors
        pids: dict[str, int] = {}
        async with asyncio.timeout(within), self.bus() as bus, contextlib.aclosing(self.statuses(bus)) as stream:
            async for status in stream:
                if status.state == "ready":
                    pids[status.id] = status.pid
                if expected_ids <= pids.keys():
                    return {id: pids[id] for id in expected_ids}
        raise AssertionError("unreachable")

    # Doors

    @contextlib.asynccontextmanager
    async def bus(self) -> AsyncIterator[NatsBus]:
        bus = await NatsBus.connect(BusSettings(url=self.state.nats_url), "test")
        try:
            yield bus
        finally:
            await bus.drain()

    @contextlib.asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        """The store, to read and write internal data of services."""
        store = Store(StoreSettings(url=self.state.store_url, secret=self.env[STORE_SECRET]))
        try:
            yield store
        finally:
            await store.close()

    @contextlib.asynccontextmanager
    async def tensors(self, node: int = 0) -> AsyncIterator[TensorClient]:
        """A client of a node's sidecar, by index from 0."""
        socket_path = str(Path(self.state.directory) / f"{sidecar_name(node)}.sock")
        async with await TensorClient.connect(socket_path, "test", self.node_name(node)) as client:
            yield client

    @property
    def node_count(self) -> int:
        return self._nodes

    def node_name(self, node: int) -> str:
        """Name of a node, by index from 0."""
        return f"local-{self.state.pid}-{node}" if node else f"local-{self.state.pid}"

    def http(self, gateway: int = 0) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.urls[gateway], timeout=150)

    def client(self) -> openai.AsyncOpenAI:
        """The official client, without its own retries."""
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=150)

    def ready(self, gateway: int = 0) -> tuple[int, dict[str, Any]]:
        """Status and body of ``/readyz``; 0 without an answer."""
        try:
            with urllib.request.urlopen(f"{self.urls[gateway]}/readyz", timeout=5) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())
        except OSError:
            return 0, {}

    async def becomes_ready(self, within: float = _BACK_WITHIN) -> None:
        """Wait for 200 of ``/readyz`` at every gateway."""
        async with asyncio.timeout(within):
            for gateway in range(len(self.urls)):
                while (await asyncio.to_thread(self.ready, gateway))[0] != 200:
                    await asyncio.sleep(0.1)

    async def record(self, id: str, within: float = 30.0) -> tuple[bytes, dict[str, Any]]:
        """Bytes and end of the recorded invocation ``id``, once both are stored."""
        async with asyncio.timeout(within), self.bus() as bus:
            while True:
                parts = [split_records(each.data) for each in await bus.read_records(f"omnibus.inv.*.{id}")]
                begins, ends = [begin for begin, _ in parts if begin], [end for _, end in parts if end]
                if begins and ends:
                    return begins[0], json.loads(ends[-1])
                await asyncio.sleep(0.05)

    async def ledger_is_empty(self, within: float = LEASES_WITHIN, node: int | None = None) -> None:
        """Check that leases of one arena or all are released ``within`` seconds."""
        end = time.monotonic() + within
        for each in range(self._nodes) if node is None else (node,):
            async with self.tensors(each) as tensors:
                while (stats := await tensors.stats())["blocks"] and time.monotonic() < end:
                    await asyncio.sleep(0.02)
                assert (stats["blocks"], stats["used_bytes"]) == (0, 0), await tensors.ledger()


def replace_text(path: Path, text: str) -> None:
    """Replace a file atomically: readers see the old text or all of the new one."""
    fresh = path.with_name(f"{path.name}.fresh")
    fresh.write_text(text)
    fresh.replace(path)


async def missing_stages(system: System, model: str, why: str = "no executor") -> dict[str, str]:
    """Stages of ``model`` that ``/readyz`` reports as missing.

    Waits until the thinker is missing for the given reason; "" stands for any. A killed executor may only look silent
    at first, to a gateway that has not noticed its end.
    """
    async with asyncio.timeout(30), system.http() as http:
        while True:
            answer = await http.get("/readyz")
            missing: dict[str, str] = {} if answer.status_code == 200 else answer.json()["missing"].get(model, {})
            if (reason := missing.get("thinker")) and why in (reason, ""):
                return missing


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
