"""A system with more registered apps than it has workers.

One app, ``bodies.APP``, is registered as usual. The benchmark writes the other records itself, as the gateway would:
registration runs each app once, which takes a third of a second of CPU. Those apps are real. Each has its own module,
which answers as ``bodies.APP`` does, with its unit task.
"""

import asyncio
import shutil
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import msgspec

from omnibus.settings import StoreSettings
from omnibus.store import Store
from tests.bench import bodies
from tests.bench.apps import SERVED, Operator
from tests.bench.system import BenchSystem, run_system

_SECRET = "of the benchmark"
_WITHIN = 120.0  # seconds for all to be known
_COLD_CALLS = 5
_STOPS_WITHIN = 2.0  # seconds for the workers that gave up their places to be gone
_MODULE = f"""
from {bodies.APP} import REPEAT, Answer, Asked, Number


async def serve(request: Asked) -> Answer:
    return Answer(seed=await (await REPEAT(Number(number=request.seed))).number)
"""


@asynccontextmanager
async def running_apps(count: int) -> AsyncIterator[BenchSystem]:
    """The system with ``count`` apps; ``bodies.APP`` is the one that is called."""
    with TemporaryDirectory() as directory_name:
        directory = Path(directory_name)
        shutil.copytree(SERVED, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        names = [f"app{number:04}" for number in range(1, count)]
        for name in names:
            (directory / f"{name}.py").write_text(_MODULE)
        async with run_system(bodies.NO_MODEL, env={"OMNIBUS_STORE_SECRET": _SECRET}, apps_dir=directory) as system:
            await _write_records(system, names)
            await _until_known(system, count)
            gateway = system.memory_mib("gateway")
            print(f"{count} apps, MiB: gateway {gateway:.0f}, a worker {_worker_mib(system)}", file=sys.stderr)
            if count > 1:
                await _call_cold(system, names[-_COLD_CALLS:])
            yield system


async def _write_records(system: BenchSystem, names: list[str]) -> None:
    store = Store(StoreSettings(url=system.stack.valkey.url, secret=_SECRET))
    try:
        record = (await store.apps())[bodies.APP]
        for name in names:
            source = msgspec.structs.replace(record.source, module=name)
            await store.put_app(msgspec.structs.replace(record, name=name, source=source), 0)
    finally:
        await store.close()


async def _until_known(system: BenchSystem, count: int) -> None:
    """Wait until the gateway lists all apps and runs its maximum workers."""
    async with asyncio.timeout(_WITHIN), Operator(system.stack) as operator:
        while True:
            states = Counter((await operator.worker_states()).values())
            if states["ready"] + states["cold"] == count:
                print(f"{count} apps: {dict(states)}", file=sys.stderr)
                return
            await asyncio.sleep(0.2)


async def _call_cold(system: BenchSystem, names: list[str]) -> None:
    """Print the times of first calls of apps without a worker.

    Each must get an answer. The last app called is the measured one.
    """
    async with httpx.AsyncClient(base_url=system.stack.url, timeout=_WITHIN, verify=False) as client:
        for seed, name in enumerate([*names, bodies.APP], bodies.FIRST):
            for ordinal in ("first", "second"):
                start_time = time.perf_counter()
                answer = await client.post(
                    f"/v1/apps/{name}/invoke", content=bodies.fill_template(bodies.make_echo(), seed)
                )
                milliseconds = 1000 * (time.perf_counter() - start_time)
                if answer.json() != {"seed": seed}:
                    raise RuntimeError(f"{name}: {answer.text}")
                print(f"{name}: the {ordinal} call took {milliseconds:.0f} ms", file=sys.stderr)
    await asyncio.sleep(_STOPS_WITHIN)


def _worker_mib(system: BenchSystem) -> str:
    """Resident memory of a worker, and the part that is not shared."""
    (pid, *_) = (pid for name, pid in system.pids().items() if name.startswith("worker"))
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    own = sum(int(fields[name].split()[0]) for name in ("Private_Clean", "Private_Dirty"))
    return f"{int(fields['Rss'].split()[0]) / 1024:.0f}, {own / 1024:.0f} of its own"
