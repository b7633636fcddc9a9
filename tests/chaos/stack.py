"""The system under attack, small enough for two cores.

It has two gateways, replicas, tiny models, a simulated one, and an app. As root, or if user namespaces are allowed, the
whole run has its own mount namespace. Small disks there hold shared memory and the run's directory, so faults can fill
them without harm to others.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil

from omnibus.families import catalog
from omnibus.up.watchdog import find_forked_pid
from omnibus_models import tiny
from tests.e2e.system import OMNI, ROOT, VL, System, declare_model

PAINTER, DIRECTOR, SIMULATED = "qwen-image-tiny", "ltx2-tiny", "simulated"
DEADLINE_SECONDS = 30.0
#: Set in the process with separate disks; the value is their directory.
OWN_DISKS = "CHAOS_OWN_DISKS"
SHARED_MIB, DISK_MIB = 448, 256
_ARENA_MIB, _ALL_ARENAS_MIB = 256, 384
_CENSUS_SECONDS = 3.0


def with_own_disks(arguments: list[str]) -> int | None:
    """Run this program again with separate small disks.

    Returns its exit code, or None if the machine does not allow that.
    """
    probe = ["unshare", *_namespace_flags(), "true"]
    if OWN_DISKS in os.environ or subprocess.run(probe, capture_output=True, check=False).returncode:
        return None
    script = (
        f"mount -t tmpfs -o size={SHARED_MIB}m tmpfs /dev/shm && "
        f'mount -t tmpfs -o size={DISK_MIB}m tmpfs "$0" && exec "$@"'
    )
    place = Path(os.environ.get("TMPDIR", "/tmp")) / f"omnibus-chaos-{os.getpid()}"
    place.mkdir()
    try:
        command = ["unshare", *_namespace_flags(), "sh", "-c", script, str(place), sys.executable, "-m", "tests.chaos"]
        environ = {**os.environ, OWN_DISKS: str(place)}
        return subprocess.run([*command, *arguments], env=environ, check=False).returncode
    finally:
        place.rmdir()


def _namespace_flags() -> list[str]:
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    return [*user, "--mount", "--propagation", "private"]


@contextlib.contextmanager
def start_stack(directory: Path, nodes: int = 1) -> Iterator["Stack"]:
    """Run the system on ``nodes`` until the block ends; ``Stack.leftovers`` then lists its leftovers."""
    models = _make_models(directory)
    settings = {
        "OMNIBUS_GATEWAY_DEADLINE": f"{DEADLINE_SECONDS:g}",
        "OMNIBUS_GATEWAY_ALLOW_HTTP": "1",
        "OMNIBUS_GATEWAY_ALLOW_PRIVATE": "1",
        "OMNIBUS_GATEWAY_VIDEO_LEASE": "5",
        "OMNIBUS_GATEWAY_VIDEOS": "1",
        "OMNIBUS_SIDECAR_ARENA_MIB": str(_ARENA_MIB if nodes == 1 else _ALL_ARENAS_MIB // nodes),
        "OMNIBUS_BUS_RECORD_BYTES": str(48 << 20),
        "OMNIBUS_BUS_DEAD_BYTES": str(8 << 20),
        "OMNIBUS_BUS_RESPONSE_BYTES": str(8 << 20),
    }
    if place := os.environ.get(OWN_DISKS):
        settings["TMPDIR"] = place
    app = str(ROOT / "examples" / "shout.py")
    flags = ("--gateways", "2", "--apps-dir", str(ROOT / "examples"), "--app", app, "--nodes", str(nodes))
    if nodes > 1:
        settings["OMNIBUS_EXECUTOR_INLINE"] = "256"  # these models are so small that little would be pulled
    more = {"gpus": {"H100": {"count": 4, "memory_gb": 80}}}
    system = System(directory, models, settings, flags, more)
    stack = Stack(system, nodes)
    try:
        system.start()
        yield stack
    finally:
        is_over = not stack.is_running
        stack.leftovers = [*(["`omnibus up` ended by itself"] if is_over else []), *system.stop()]


def _make_models(directory: Path) -> dict[str, Any]:
    checkpoints = directory / "checkpoints"
    paths = {
        family: tiny.build(family, checkpoints / family)
        for family in ("qwen2_5_vl", "qwen2_5_omni", "qwen_image", "ltx2")
    }
    seeing = declare_model("qwen2_5_vl", paths["qwen2_5_vl"])
    options = {**seeing["options"], "L": {**seeing["options"]["L"], "replicas": 2}}
    simulation = catalog.model_declaration("qwen2_5_omni", str(ROOT / "examples" / "simulated" / "times.json"))
    return {
        VL: {**seeing, "options": options},
        OMNI: _only_option(declare_model("qwen2_5_omni", paths["qwen2_5_omni"]), "M", replicas=2),
        PAINTER: _only_option(declare_model("qwen_image", paths["qwen_image"]), "TDV"),
        DIRECTOR: _only_option(declare_model("ltx2", paths["ltx2"]), "M"),
        SIMULATED: _only_option(simulation, "M", replicas=2, engine="omnibus_engines:sim"),
    }


def _only_option(model: dict[str, Any], option: str, **more: Any) -> dict[str, Any]:
    """A deployment in one option."""
    return {**model, "options": {option: {**model["options"][option], **more}}, "paths": [{"options": [option]}]}


class Stack:
    """Processes of the system by role, and their state from outside."""

    def __init__(self, system: System, nodes: int = 1) -> None:
        self.system = system
        self.nodes = nodes
        self.began = time.monotonic()
        self.leftovers: list[str] = []
        self._executors: dict[str, int] = {}

    @property
    def is_running(self) -> bool:
        """True while ``omnibus up`` runs."""
        process = self.system._process
        return process is not None and process.poll() is None

    @property
    def elapsed_seconds(self) -> float:
        return time.monotonic() - self.began

    def restart_clock(self) -> None:
        """Count the seconds of the run from here."""
        self.began = time.monotonic()

    async def executors(self) -> dict[str, int]:
        """Process ids of executors; the last known ones while the bus is away."""
        # A run may stop or freeze the bus at any time.
        with contextlib.suppress(Exception):
            await self._take_census()
        self._executors = {id: pid for id, pid in self._executors.items() if psutil.pid_exists(pid)}
        return dict(self._executors)

    async def _take_census(self) -> None:
        async with (
            asyncio.timeout(_CENSUS_SECONDS),
            self.system.bus() as bus,
            contextlib.aclosing(self.system.statuses(bus)) as statuses,
        ):
            async for status in statuses:
                self._executors[status.id] = status.pid

    async def find_victims(self, role: str) -> dict[str, psutil.Process]:
        """Processes that play ``role``, by names that are stable between runs."""
        if role == "executor":
            pids = await self.executors()
            return {id: psutil.Process(pids[id]) for id in sorted(pids) if psutil.pid_exists(pids[id])}
        return await asyncio.to_thread(self._find_processes, role)

    def _find_processes(self, role: str) -> dict[str, psutil.Process]:
        if role == "gateway":
            return {f"gateway-{index}": process for index, process in enumerate(self._find_gateways()) if process}
        pairs = []
        for process in self.system.processes() if role == "app worker" else self.system.commands():
            with contextlib.suppress(psutil.Error):
                if plays_role(process.cmdline(), role):
                    real_process = psutil.Process(find_forked_pid(process.pid))
                    pairs.append((_process_name(process, role), real_process))
        return dict(sorted(pairs, key=lambda each: each[0]))

    def _find_gateways(self) -> list[psutil.Process | None]:
        running: list[psutil.Process | None] = []
        for index in range(len(self.system.urls)):
            try:
                running.append(self.system.gateway(index))
            except (StopIteration, psutil.Error, KeyError):
                running.append(None)
        return running

    async def wait_settled(self, within: float) -> str:
        """Wait until everything serves again; after ``within`` seconds, return missing parts in words."""
        try:
            await self.system.becomes_ready(within)
        except TimeoutError:
            return f"not ready again: {json.dumps([self.system.ready(each) for each in range(2)])[:500]}"
        return ""

    async def count_blocks(self, within: float) -> int:
        """Count leased blocks of all arenas after all requests have ended.

        Waits at most ``within`` seconds for that.
        """
        end = time.monotonic() + within
        while True:
            blocks = [await self._blocks_on(node) for node in range(self.nodes)]
            if not any(blocks) or time.monotonic() > end:
                return -1 if -1 in blocks else sum(blocks)
            await asyncio.sleep(0.2)

    async def _blocks_on(self, node: int) -> int:
        """Leased blocks of the arena of ``node``; -1 when its sidecar does not answer."""
        try:
            async with asyncio.timeout(5), self.system.tensors(node) as tensors:
                return int((await tensors.stats())["blocks"])
        except (OSError, TimeoutError):
            return -1


_MARKS = {
    "sidecar": ("omnibus_sidecar",),
    "planner": ("omnibus_planner",),
    "fork-server": ("omnibus.up.fork_server",),
    "app worker": ("omnibus.app.worker",),
}
_SERVERS = {"nats": ("nats-server",), "valkey": ("valkey-server", "redis-server")}


def plays_role(command: list[str], role: str) -> bool:
    """True for the command line of a process that plays ``role``."""
    if role in _SERVERS:
        return any(name in " ".join(command[:1]) for name in _SERVERS[role])
    return any(mark in command for mark in _MARKS.get(role, ()))


def _process_name(process: psutil.Process, role: str) -> str:
    environ = process.environ()
    if role == "fork-server":  # there are several
        return [Path(word).stem for word in process.cmdline() if word.endswith(".sock")][-1]
    if role == "sidecar":  # the process id in a node's name is another one in each run
        return f"sidecar{environ['OMNIBUS_SIDECAR_NODE'].partition('-')[2].partition('-')[2]}"
    return str(environ.get("OMNIBUS_EXECUTOR_ID") or f"{role} {process.ppid() if role == 'app worker' else ''}".strip())


@contextlib.asynccontextmanager
async def watch_stack(stack: Stack, every: float, look: Any) -> AsyncIterator[None]:
    """Call ``look`` each ``every`` seconds while the block runs."""

    async def keep_looking() -> None:
        while True:
            await asyncio.to_thread(look)
            await asyncio.sleep(every)

    task = asyncio.create_task(keep_looking())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
