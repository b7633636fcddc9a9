"""Hundreds of requests, some malformed or aborted: right answers, no leaks."""

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from omnibus.profiling.memory import GB, memory_gb
from tests.e2e.soak.conftest import HALVES
from tests.e2e.soak.crowd import crowd, questions, served
from tests.e2e.system import VL, System
from tests.nightly import nightly

pytestmark = pytest.mark.e2e

SEED = 20
AT_ONCE, BAD = 32, 0.05
#: Before: worse, so that every executor has used all of its slots and seen every kind of malformed request.
CROWDED, WORSE = 128, 0.2
GROWTH = 0.02  # of an executor's memory
SETTLES = 5.0  # seconds until the last abandoned requests have ended
SAID = "omnibus.test.stats"


@pytest.mark.parametrize("count", [300, *nightly(2000)])
async def test_all_requests_are_answered_right_and_leave_nothing_behind(
    soaked: System, vl_checkpoint: Path, count: int
):
    dice = Random(SEED)
    known = questions(vl_checkpoint, dice)
    warm, clients = (crowd(known, (VL, HALVES), *each, dice) for each in ((300, WORSE), (count, BAD)))
    pids = await soaked.whole()
    await soaked.becomes_ready()
    first = await served(soaked, warm, CROWDED)
    await soaked.ledger_is_empty(SETTLES)
    before = {id: resident(pid) for id, pid in pids.items()}

    second = await served(soaked, clients, AT_ONCE)
    await soaked.ledger_is_empty(SETTLES)
    grown = {id: (resident(pid) - before[id]) / (memory_gb(pid) * GB) for id, pid in pids.items()}

    assert first.wrong + second.wrong == []
    assert second.counts.total() == count
    assert second.counts["refused"] == sum(client.known is None for client in clients) > 0
    assert second.counts["left"] > 0
    assert await soaked.whole() == pids
    assert await held(soaked, len(pids)) == {}
    assert {id: part for id, part in grown.items() if part > GROWTH} == {}


def resident(pid: int) -> int:
    """Private memory in bytes.

    PSS would grow without new memory in two cases. A process writes to a page that it shared with the one it was forked
    from, or others that use the same libraries end. The ledger contains the memory in the arena.
    """
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon:")).split()[1])


async def held(system: System, executors: int) -> dict[str, Any]:
    """Occupied slots and queued work by component of an executor, if any."""
    found: asyncio.Queue[bytes] = asyncio.Queue()
    taken = {}
    async with asyncio.timeout(10), system.bus() as bus:
        stop = await bus.subscribe(SAID, lambda delivery: found.put_nowait(delivery.data))
        bus.publish("$SRV.STATS", b"", reply=SAID)
        for _ in range(executors):
            said: dict[str, Any] = json.loads(await found.get())
            for each in said["endpoints"]:
                counts = {name: each["data"][name] for name in ("used", "waiting") if each["data"].get(name)}
                if counts:
                    taken[f"{said['name']} {each['name']}"] = counts
        await stop()
    return taken
