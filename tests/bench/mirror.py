"""Cost of mirroring to a candidate for users' latencies: ``python -m tests.bench.mirror``.

The result is the latency while finished requests are mirrored, over that without. A whole system of simulated executors
serves requests of the example workload (``examples/workload.json``) at a fixed rate, whether or not earlier ones have
been answered. A candidate for the encoder runs in the shadow throughout. Blocks in which part of the finished requests
is compared alternate with blocks without comparison, so other load on the machine affects both.
"""

import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec

from omnibus.canary.candidate import Bounds, Candidate, GateRules, OptionChange
from omnibus.store import Store
from tests.bench.cases import MIRROR_P99
from tests.bench.quotes import FAMILY, MODEL, SETTINGS, read_whole_body, sample_requests, write_times
from tests.e2e.system import System, declare_model, start_system

#: Part of the finished requests that is mirrored: the default of ``omnibus canary start``, and one that is none.
MIRROR, NONE = 0.1, 1e-12
#: Times of the simulated executors, as a part of those of the example.
TIME_SCALE = 0.25
RATE = 16.0  # requests per second
BLOCKS, BLOCK_SECONDS = 16, 8.0
#: Seconds at the end of a block without requests, in which comparisons end.
_PAUSE_SECONDS = 1.0
_START_SECONDS = 60.0
#: Gates that never have a verdict: the candidate stays where it is.
_OPEN = Bounds(0.98, 0.99)


def declare_mirrored_model(directory: Path) -> dict[str, Any]:
    """The example's model with shorter times and no path except the candidate's."""
    model = declare_model(FAMILY, write_times(directory, TIME_SCALE))
    model["options"] = {name: model["options"][name] for name in ("E", "L")}
    return {**model, "paths": [{"options": ["E", "L"], "share": 1}]}


async def start_candidate(system: System, store: Store, checkpoint: str) -> Candidate:
    """Try another encoder that is as fast; returns once its executor is ready."""
    rules = GateRules(slack=100.0, failed=_OPEN, slower=_OPEN, differed=_OPEN)
    change = OptionChange("E", checkpoint=checkpoint)
    candidate = Candidate("mirrored", MODEL, (change,), mirror=NONE, share=0.0, rules=rules, since=time.time())
    await store.put_candidate(candidate, None)
    async with asyncio.timeout(_START_SECONDS), system.bus() as bus:
        async for status in system.statuses(bus):
            if status.option == "E@canary" and status.state == "ready":
                return candidate
    raise AssertionError("unreachable")


async def send_block(http: httpx.AsyncClient, bodies: Iterator[bytes], chance: random.Random) -> list[float]:
    """Send requests for a block, at random intervals; returns their seconds."""

    async def send_body(body: bytes) -> float:
        began = time.perf_counter()
        answer = await http.post("/v1/chat/completions", content=body)
        answer.raise_for_status()
        return time.perf_counter() - began

    tasks, ends = [], time.monotonic() + BLOCK_SECONDS
    due = time.monotonic()
    while (due := due + chance.expovariate(RATE)) < ends:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tasks.append(asyncio.create_task(send_body(next(bodies))))
    return await asyncio.gather(*tasks)


async def measure_mirror(system: System, directory: Path) -> dict[float, list[float]]:
    """Seconds of requests with and without a mirror."""
    seconds: dict[float, list[float]] = {MIRROR: [], NONE: []}
    other = directory / "others.json"
    other.write_bytes((directory / "times.json").read_bytes())
    async with system.store() as store, httpx.AsyncClient(base_url=system.url, timeout=60.0) as http:
        candidate = await start_candidate(system, store, str(other))
        await send_block(http, map(read_whole_body, sample_requests(0)), random.Random(0))
        for block in range(BLOCKS):
            # Two blocks with the same requests at the same times, in turns which is first.
            mirror = (MIRROR, NONE)[(block + block // 2) % 2]
            after = msgspec.structs.replace(candidate, mirror=mirror)
            await store.put_candidate(after, (await store.candidates())[MODEL])
            await asyncio.sleep(_PAUSE_SECONDS)
            bodies = map(read_whole_body, sample_requests(1 + block // 2))
            seconds[mirror] += await send_block(http, bodies, random.Random(block // 2))
        counts = await store.counts(candidate.id)
    print(f"{counts.get('pairs', 0)} comparisons beside {len(seconds[MIRROR])} requests", file=sys.stderr)
    assert counts.get("pairs", 0) > 0, "nothing was mirrored"
    return seconds


def compute_percentile(seconds: list[float], part: float) -> float:
    """The value that ``part`` of ``seconds`` do not exceed."""
    return sorted(seconds)[int(part * (len(seconds) - 1))]


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory(prefix="omnibus-mirror-") as made,
        start_system(Path(made), {MODEL: declare_mirrored_model(Path(made))}, **SETTINGS) as up,
    ):
        seconds = asyncio.run(measure_mirror(up, Path(made)))
    for part in (0.5, 0.9, 0.99):
        on, off = compute_percentile(seconds[MIRROR], part), compute_percentile(seconds[NONE], part)
        print(
            f"p{100 * part:.0f} {1000 * on:.1f} ms with, {1000 * off:.1f} ms without: {on / off:.3f}", file=sys.stderr
        )
    print(json.dumps({MIRROR_P99: compute_percentile(seconds[MIRROR], 0.99) / compute_percentile(seconds[NONE], 0.99)}))
