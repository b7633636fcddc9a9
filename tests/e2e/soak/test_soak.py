"""Hundreds of requests, some malformed or aborted: right answers, no leaks."""

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from omnibus.profiling.memory import GB, memory_gb
from tests.e2e.soak.conftest import HALVES
from tests.e2e.soak.crowd import make_crowd, make_questions, run_crowd
from tests.e2e.system import VL, System
from tests.nightly import mark_nightly

pytestmark = pytest.mark.e2e

SEED = 20
AT_ONCE, BAD = 32, 0.05
#: Before: worse, so that every executor has used all of its slots and seen every kind of malformed request.
CROWDED, WORSE = 128, 0.2
GROWTH = 0.02  # of an executor's memory
SETTLES = 5.0  # seconds until the last abandoned requests have ended
SAID = "omnibus.test.stats"


@pytest.mark.parametrize("count", [300, *mark_nightly(2000)])
async def test_all_requests_are_answered_right_and_leave_nothing_behind(
    soak_system: System, vl_checkpoint: Path, count: int
):
    dice = Random(SEED)
    known_questions = make_questions(vl_checkpoint, dice)
    warm, clients = (make_crowd(known_questions, (VL, HALVES), *each, dice) for each in ((300, WORSE), (count, BAD)))
    pids = await soak_system.whole()
    await soak_system.becomes_ready()
    first = await run_crowd(soak_system, warm, CROWDED)
    await soak_system.ledger_is_empty(SETTLES)
    before = {id: measure_resident(pid) for id, pid in pids.items()}

    second = await run_crowd(soak_system, clients, AT_ONCE)
    await soak_system.ledger_is_empty(SETTLES)
    growth = {id: (measure_resident(pid) - before[id]) / (memory_gb(pid) * GB) for id, pid in pids.items()}

    assert first.wrong + second.wrong == []
    assert second.counts.total() == count
    assert second.counts["refused"] == sum(client.known is None for client in clients) > 0
    assert second.counts["left"] > 0
    assert await soak_system.whole() == pids
    assert await read_occupied(soak_system, len(pids)) == {}
    assert {id: part for id, part in growth.items() if part > GROWTH} == {}


def measure_resident(pid: int) -> int:
    """Private memory in bytes.

    PSS would grow without new memory in two cases. A process writes to a page that it shared with the one it was forked
    from, or others that use the same libraries end. The ledger contains the memory in the arena.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon:")).split()[1])


async def read_occupied(system: System, executors: int) -> dict[str, Any]:
    """Occupied slots and queued work by component of an executor, if any."""
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    slots = {}
    async with asyncio.timeout(10), system.bus() as bus:
        stop = await bus.subscribe(SAID, lambda delivery: queue.put_nowait(delivery.data))
        bus.publish("$SRV.STATS", b"", reply=SAID)
        for _ in range(executors):
            statistics: dict[str, Any] = json.loads(await queue.get())
            for each in statistics["endpoints"]:
                counts = {name: each["data"][name] for name in ("used", "waiting") if each["data"].get(name)}
                if counts:
                    slots[f"{statistics['name']} {each['name']}"] = counts
        await stop()
    return slots
