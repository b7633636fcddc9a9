"""Cost of a request in a system that is larger than necessary.

    python -m tests.bench.scale

    scale.executors16_over_1        with 16 executors per stage, by that with one, which has all 256 requests at once
    scale.executors16_each_over_1   the same, by that with one that has 16 at once, as each of the 16 has
    scale.gateways4_over_1          with four gateways that share the connections, by that with one
    scale.models200_over_1          with 200 models, which share the executors of one, by that with one
    scale.apps1000_over_1           of a call of an app, with 1,000 registered apps, by that with one

The cost is CPU of all processes except the load generator, less their idle CPU (each sends a heartbeat every second).
Both systems get the same requests over the same number of connections: 256, for apps 16. They run at the same time and
take turns. A result is the median of the rounds' ratios.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import uvloop

from tests.bench import bodies
from tests.bench.cases import (
    APPS1000,
    CASES,
    EXECUTORS,
    EXECUTORS_EACH,
    GATEWAYS,
    MODELS200,
    SCALE,
    SCALED,
    BenchCase,
)
from tests.bench.many_apps import running_apps
from tests.bench.system import MODELS, PATHS, BenchSystem, run_system

_ROUNDS = 3
_IDLE_SECONDS = 1.0
#: One executor takes all connections at the same time, too.
_CREDITS = {"OMNIBUS_EXECUTOR_CREDITS": "512"}
_REPLICAS, _GATEWAYS, _MODELS, _APPS = 16, 4, 200, 1000
_APP_CONNECTIONS = 16
ONE, SIXTEEN, ONE_APP = "one of each", "16 executors of each", "one app"
#: The systems that are compared, and their connections.
_COMPARED = {
    EXECUTORS: (ONE, SIXTEEN, SCALED, SCALED),
    EXECUTORS_EACH: (ONE, SIXTEEN, SCALED // _REPLICAS, SCALED),
    GATEWAYS: (ONE, GATEWAYS, SCALED, SCALED),
    MODELS200: (ONE, MODELS200, SCALED, SCALED),
    APPS1000: (ONE_APP, APPS1000, _APP_CONNECTIONS, _APP_CONNECTIONS),
}
_CHAT = BenchCase(bodies.TEXT_MODEL, bodies.text_chat(), SCALED, 8 * SCALED)
_STOPS_WITHIN = 60.0  # seconds
_MODEL = MODELS[bodies.TEXT_MODEL]


def _replicate_model(replicas: int) -> Mapping[str, Any]:
    options = {name: {**option, "replicas": replicas} for name, option in _MODEL["options"].items()}
    return {bodies.TEXT_MODEL: {**_MODEL, "options": options}}


def _share_model(count: int) -> Mapping[str, Any]:
    """A number of models that the executors of the first one serve."""
    sharing_model = {
        **_MODEL,
        "options": {},
        "paths": [{"options": [f"{bodies.TEXT_MODEL}/{option}" for option in _MODEL["options"]]}],
        "shares": dict.fromkeys(_MODEL["components"], bodies.TEXT_MODEL),
    }
    return {bodies.TEXT_MODEL: _MODEL, **{f"shared-{number}": sharing_model for number in range(1, count)}}


@asynccontextmanager
async def _start_system(name: str) -> AsyncIterator[BenchSystem]:
    starting: Mapping[str, Callable[[], AbstractAsyncContextManager[BenchSystem]]] = {
        ONE: lambda: run_system(bodies.TEXT_MODEL, env=_CREDITS),
        SIXTEEN: lambda: run_system(bodies.TEXT_MODEL, models=_replicate_model(_REPLICAS), env=_CREDITS),
        GATEWAYS: lambda: run_system(bodies.TEXT_MODEL, gateways=_GATEWAYS, env=_CREDITS),
        MODELS200: lambda: run_system(bodies.TEXT_MODEL, models=_share_model(_MODELS), env=_CREDITS),
        ONE_APP: lambda: running_apps(1),
        APPS1000: lambda: running_apps(_APPS),
    }
    async with starting[name]() as system:
        yield system


async def _serve_samples(name: str) -> None:
    """Run a system; answer each line of stdin with the CPU ms of a request.

    The line contains the number of connections.
    """
    loop, apps = asyncio.get_running_loop(), name in (ONE_APP, APPS1000)
    async with _start_system(name) as system:
        print("up", flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            case = CASES["apps.invoke_ms"] if apps else _CHAT
            case = replace(case, connections=int(line))
            before, measurement = await system.idle(_IDLE_SECONDS), await system.take_sample(name, case)
            idle = (before + await system.idle(_IDLE_SECONDS)) / 2
            print(
                f"{name}: {measurement.total:.3f} ms, of which {idle:.1f} in a second without requests", file=sys.stderr
            )
            print(measurement.total - idle * measurement.done.seconds / measurement.done.requests, flush=True)


Sample = Callable[[int], float]


@contextmanager
def _start_process(name: str) -> Iterator[Sample]:
    """Run a system in its own process; the function takes one sample with a number of connections."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.scale", "--serve", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PATHS},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    commands, output = process.stdin, process.stdout

    def take_sample(connections: int) -> float:
        commands.write(f"{connections}\n")
        commands.flush()
        return float(output.readline())

    try:
        if output.readline() != "up\n":
            raise RuntimeError(f"the system of {name} did not start; what it says is above")
        yield take_sample
    finally:
        commands.close()
        try:
            process.wait(_STOPS_WITHIN)
        except subprocess.TimeoutExpired:
            process.terminate()
            raise


def measure_scale(names: list[str]) -> dict[str, float]:
    """The ratios by name."""
    ratios: dict[str, float] = {}
    for small, large in dict.fromkeys(_COMPARED[name][:2] for name in names):
        with _start_process(small) as smaller, _start_process(large) as larger:
            for name in names:
                if _COMPARED[name][:2] == (small, large):
                    ratios[name] = _measure_ratio(name, smaller, larger)
    return ratios


def _measure_ratio(name: str, smaller: Sample, larger: Sample) -> float:
    _, _, few, many = _COMPARED[name]
    pairs = [(smaller(few), larger(many)) for _ in range(_ROUNDS)]
    for small, large in pairs:
        print(f"{name}: {small:.3f} and {large:.3f} ms", file=sys.stderr)
    return round(statistics.median(large / small for small, large in pairs), 4)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        uvloop.run(_serve_samples(sys.argv[2]))
    else:
        print(json.dumps(measure_scale(sys.argv[1:] or list(SCALE))))
