"""The whole system with null engines on this machine, and its cost.

CPU time comes from each process's own CPU clock in nanoseconds, including threads that have ended. ``/proc/<pid>/stat``
counts in ticks of 10 ms. The supervisor and the load generator are left out.
"""

import asyncio
import contextlib
import io
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import psutil

from omnibus.process.logs import Log
from omnibus.process.spec import PACKAGE_PATH
from omnibus.up.ports import free_ports
from omnibus.up.stack import Stack
from tests.bench import bodies
from tests.bench.apps import SERVED, Operator
from tests.bench.cases import ECHO, BenchCase
from tests.bench.client import Done

ROOT = Path(__file__).parents[2]

#: Directory for cProfile files of every Python process; unset: no profiling.
PROFILE_VARIABLE = "OMNIBUS_BENCH_CPROFILE"

_STEP_WITHIN = 150.0  # seconds for one step of the load generator
_START_WITHIN = 20.0  # seconds for the echo server
_SETTLED = 0.1  # seconds after an answer until its invocation is ended and recorded

_HERE = Path(__file__).parent
#: PYTHONPATH of every process here, also without an installation.
PATHS = f"{ROOT}:{PACKAGE_PATH}"


def _make_option(service: str, *components: str) -> dict[str, object]:
    return {"components": components, "service": service}


def _make_model(
    encoders: Mapping[str, str], components: tuple[str, ...], options: Mapping[str, object]
) -> dict[str, object]:
    paths = [{"options": list(options)}]
    common = {"family": "qwen2_5_omni", "checkpoint": "", "encoders": encoders, "components": components}
    return {**common, "options": options, "paths": paths}


MODELS = {
    bodies.TEXT_MODEL: _make_model(
        {},
        ("thinker", "talker", "vocoder"),
        {
            "Th": _make_option("llm", "thinker"),
            "Ta": _make_option("llm", "talker"),
            "V": _make_option("generator", "vocoder"),
        },
    ),
    bodies.IMAGE_MODEL: _make_model(
        {"image": "vision"},
        ("vision", "thinker", "talker", "vocoder"),
        {
            "E": _make_option("encoder", "vision"),
            "L": _make_option("llm", "thinker"),
            "G": _make_option("generator", "talker", "vocoder"),
        },
    ),
}


class BenchSample(msgspec.Struct, frozen=True):
    """One round of one case: CPU ms per request by process, and the load generator's results."""

    cpu_ms: dict[str, float]
    done: Done

    @property
    def total(self) -> float:
        return sum(self.cpu_ms.values())


class BenchSystem:
    """The running system and the echo server."""

    def __init__(self, stack: Stack, echo: "asyncio.subprocess.Process", echo_port: int) -> None:
        self.stack = stack
        self._echo = echo
        self._echo_port = echo_port

    async def take_sample(self, name: str, case: BenchCase) -> BenchSample:
        """Run ``case`` once. Raises ``RuntimeError`` when an answer is wrong or a process was restarted."""
        floor = name == ECHO
        pids = {"echo": self._echo.pid} if floor else self.pids()
        load = case.load(self._echo_port if floor else self.stack.port)
        if not floor:
            load = msgspec.structs.replace(load, more_ports=tuple(self.stack.ports[1:]))
        async with _start_client() as client:
            await _write_line(client, msgspec.json.encode(load))
            await _read_line(client, name)
            before = await _read_settled_cpu(pids)
            await _write_line(client, b"go")
            result = msgspec.json.decode(await _read_line(client, name), type=Done)
            after = await _read_settled_cpu(pids)
        if not floor and pids != self.pids():
            raise RuntimeError(f"{name}: a process was restarted while it was measured")
        return BenchSample({key: (after[key] - before[key]) / result.requests for key in pids}, result)

    def pids(self) -> dict[str, int]:
        """Every process of the system by name; the gateway's children are workers of apps."""
        pids = self.stack.pids
        workers = psutil.Process(pids["gateway"]).children()
        return {**pids, **{f"worker {number}": worker.pid for number, worker in enumerate(workers)}}

    async def idle(self, seconds: float) -> float:
        """CPU ms per second of the whole idle system."""
        pids = self.pids()
        start_time, before = time.perf_counter(), _cpu_ms(pids)
        await asyncio.sleep(seconds)
        return (sum(_cpu_ms(pids).values()) - sum(before.values())) / (time.perf_counter() - start_time)

    def memory_mib(self, process: str) -> float:
        """Resident memory of ``process`` without the arena, which a node's processes share."""
        status = Path(f"/proc/{self.stack.pids[process]}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssFile")) / 1024


@contextlib.asynccontextmanager
async def run_system(
    model: str,
    nodes: int = 1,
    *,
    models: Mapping[str, Any] | None = None,
    gateways: int = 1,
    env: Mapping[str, str] | None = None,
    apps_dir: Path = SERVED,
) -> AsyncIterator[BenchSystem]:
    """Start everything for ``model`` on ``nodes``, and clean up afterwards.

    Logs are printed only on failure. ``models`` replace the model's own declarations, ``env`` is additional environment
    of all services, and apps are below ``apps_dir``.
    """
    lines = io.StringIO()
    app = model == bodies.NO_MODEL
    declarations = json.dumps({"models": models or ({} if app else {model: MODELS[model]})})
    new_stack = Stack(
        declarations,
        env={**_make_environment(), **(env or {})},
        log=Log(lines),
        apps_dir=apps_dir,
        fork_executors=not app,
        nodes=nodes,
        gateways=gateways,
    )
    try:
        async with new_stack as stack, _start_echo() as (echo, port):
            if app:
                async with Operator(stack) as operator:
                    await operator.register_app(bodies.APP)
            yield BenchSystem(stack, echo, port)
    except BaseException:
        print(lines.getvalue()[-8000:], file=sys.stderr)
        raise


def _make_environment() -> dict[str, str]:
    environment = {"OMNIBUS_EXECUTOR_ENGINE": "tests.bench.null:engine"}
    if directory := os.environ.get(PROFILE_VARIABLE):
        Path(directory).mkdir(parents=True, exist_ok=True)
        environment |= {"PYTHONPATH": os.pathsep.join([str(_HERE / "hooks"), PATHS]), PROFILE_VARIABLE: directory}
    return environment


def _cpu_ms(pids: Mapping[str, int]) -> dict[str, float]:
    # Linux: the clock of a process is its inverted id and the number of the scheduler's clock, 2.
    return {name: time.clock_gettime_ns((~pid << 3) | 2) / 1e6 for name, pid in pids.items()}


async def _read_settled_cpu(pids: Mapping[str, int]) -> dict[str, float]:
    await asyncio.sleep(_SETTLED)
    return _cpu_ms(pids)


@contextlib.asynccontextmanager
async def _start_process(*arguments: str) -> AsyncIterator["asyncio.subprocess.Process"]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *arguments, stdin=pipe, stdout=pipe, cwd=ROOT, env={**os.environ, "PYTHONPATH": PATHS}
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _start_client() -> "contextlib.AbstractAsyncContextManager[asyncio.subprocess.Process]":
    return _start_process("tests.bench.client")


@contextlib.asynccontextmanager
async def _start_echo() -> AsyncIterator[tuple["asyncio.subprocess.Process", int]]:
    (port,) = free_ports(1)
    async with _start_process("tests.bench.floor", str(port)) as process:
        async with asyncio.timeout(_START_WITHIN):
            while not await _is_listening(port):
                await asyncio.sleep(0.05)
        yield process, port


async def _is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def _write_line(client: "asyncio.subprocess.Process", line: bytes) -> None:
    assert client.stdin is not None
    client.stdin.write(line + b"\n")
    async with asyncio.timeout(_STEP_WITHIN):
        await client.stdin.drain()


async def _read_line(client: "asyncio.subprocess.Process", name: str) -> bytes:
    assert client.stdout is not None
    async with asyncio.timeout(_STEP_WITHIN):
        line = await client.stdout.readline()
    if not line:
        raise RuntimeError(f"{name}: the load generator failed; what it says is above")
    return line
