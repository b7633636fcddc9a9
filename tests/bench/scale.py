"""What a request costs in a system that is larger than it needs to be.

    python -m tests.bench.scale

    scale.executors16_over_1   with 16 executors per stage, by that with one
    scale.gateways4_over_1     with four gateways that share the connections, by that with one
    scale.apps1000_over_1      with 1,000 registered apps and 200 models, by that with one model

CPU of all processes but the load generator, the same requests by as many connections. Both systems are up at the same
time and take turns; a result is the median of the rounds' ratios. The 200 models share the executors of one. The apps
are registered and routed to, but none of their workers runs: a thousand processes do not fit on this machine.
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import uvloop

from omnibus.app.module_loader import DIRECTORY
from omnibus.app_record import AppRecord, AppSource
from omnibus.settings import StoreSettings
from omnibus.store import Store
from omnibus.up.stack import STORE_SECRET
from tests.bench import bodies
from tests.bench.apps import Operator
from tests.bench.cases import APPS, EXECUTORS, GATEWAYS, SCALED, Case
from tests.bench.system import MODELS, System, running

_ROUNDS = 5
_REPLICAS, _GATEWAYS, _APPS, _MODELS = 16, 4, 1000, 200
_SECRET = "secret of a benchmark's store"  # noqa: S105 nothing else is signed with it
_KNOWN_WITHIN = 60.0  # seconds until a gateway knows all apps
_MODEL = MODELS[bodies.TEXT_MODEL]


def _replicated(replicas: int) -> Mapping[str, Any]:
    options = {name: {**option, "replicas": replicas} for name, option in _MODEL["options"].items()}
    return {bodies.TEXT_MODEL: {**_MODEL, "options": options}}


def _shared(count: int) -> Mapping[str, Any]:
    """So many models, which the executors of the first one serve."""
    shared = {
        **_MODEL,
        "options": {},
        "paths": [{"options": [f"{bodies.TEXT_MODEL}/{option}" for option in _MODEL["options"]]}],
        "shares": dict.fromkeys(_MODEL["components"], bodies.TEXT_MODEL),
    }
    return {bodies.TEXT_MODEL: _MODEL, **{f"shared-{number}": shared for number in range(1, count)}}


def _larger() -> dict[str, AbstractAsyncContextManager[System]]:
    return {
        EXECUTORS: running(bodies.TEXT_MODEL, models=_replicated(_REPLICAS)),
        GATEWAYS: running(bodies.TEXT_MODEL, gateways=_GATEWAYS),
        APPS: running(bodies.TEXT_MODEL, models=_shared(_MODELS), env={STORE_SECRET: _SECRET}),
    }


async def _register_apps(system: System) -> None:
    """Write records of apps that no gateway may start, and wait until they are known."""
    store = Store(StoreSettings(url=system.stack.valkey.url, secret=_SECRET))
    try:
        for number in range(_APPS):
            await store.put_app(_app(f"app-{number}"), 0)
    finally:
        await store.close()
    async with Operator(system.stack) as operator, asyncio.timeout(_KNOWN_WITHIN):
        while len(await operator.listed("/v1/apps")) < _APPS:
            await asyncio.sleep(0.2)


def _app(name: str) -> AppRecord:
    source, now = AppSource(DIRECTORY, name.replace("-", "_"), "/nowhere"), time.time()
    return AppRecord(name, 1, source, "chat", name, (), {}, {}, False, "", now, now, chat=True)


async def _ratio(name: str, one: System, larger: System) -> float:
    case, ratios = Case(bodies.TEXT_MODEL, bodies.text_chat(), SCALED, 25 * SCALED), []
    for _ in range(_ROUNDS):
        small, large = await one.sample(name, case), await larger.sample(name, case)
        ratios.append(large.total / small.total)
        print(f"{name}: {small.total:.3f} and {large.total:.3f} ms", file=sys.stderr)
    return statistics.median(ratios)


async def measure(names: list[str]) -> dict[str, float]:
    """The ratios by name."""
    found = {}
    for name, starting in _larger().items():
        if name in names:
            async with AsyncExitStack() as stack:
                one = await stack.enter_async_context(running(bodies.TEXT_MODEL))
                larger = await stack.enter_async_context(starting)
                if name == APPS:
                    await _register_apps(larger)
                found[name] = round(await _ratio(name, one, larger), 4)
    return found


if __name__ == "__main__":
    print(json.dumps(uvloop.run(measure(sys.argv[1:] or [EXECUTORS, GATEWAYS, APPS]))))
