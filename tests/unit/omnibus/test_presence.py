"""Executors and gateways present on the bus."""

import asyncio
import math
from collections.abc import AsyncIterator

import msgspec
import pytest

from omnibus.bus import subjects
from omnibus.bus.heartbeats import EXECUTOR_ABSENT_SECONDS
from omnibus.bus.messages import ExecutorStatus, GatewayStatus
from omnibus.cluster.presence import ExecutorKind, GatewayPlans, PresenceTracker, ReadyExecutors
from omnibus.settings import BusSettings
from tests.memory_bus import MemoryBus

L, NEW = ExecutorKind("m", "L", "aaaa"), ExecutorKind("m", "L", "bbbb")


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    bus = MemoryBus(BusSettings())
    yield bus
    await bus.drain()


async def run_turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def publish_executor(bus: MemoryBus, id: str, origin: str = "aaaa", state: str = "ready", option: str = "L") -> None:
    status = ExecutorStatus(id, "m", option, (), (), "n", state, 1, origin=origin)
    bus.publish(subjects.event_subject(subjects.EXECUTOR), msgspec.json.encode(status))


def publish_gateway(bus: MemoryBus, id: str, created: float, state: str = "ready") -> None:
    status = GatewayStatus(id, int(created), created, state)
    bus.publish(subjects.event_subject(subjects.GATEWAY), msgspec.json.encode(status))


# All


async def test_processes_are_present_until_they_end_or_fall_silent():
    now = 0.0
    tracker = PresenceTracker[str](lost_after=2.0, clock=lambda: now)
    for id in "abc":
        tracker.record(id, id.upper())
    now = 1.5
    tracker.record("a", "again")

    assert tracker.remove("b") == "B"
    assert tracker.remove("b") is None
    assert tracker.entries() == {"a": "again", "c": "C"}
    now = 3.0
    assert (tracker.get("a"), tracker.get("c"), tracker.get("b")) == ("again", None, None)
    assert tracker.entries() == {"a": "again"}
    assert (tracker.last_seen("a"), tracker.last_seen("c")) == (1.5, -math.inf)


async def test_who_waits_looks_again_at_each_change():
    tracker = PresenceTracker[bool]()
    waiting = asyncio.ensure_future(tracker.wait_until(lambda: tracker.get("a") is not None, 10.0))
    tracker.notify_change()
    await run_turns()
    assert not waiting.done()

    tracker.record("a", True)
    tracker.notify_change()

    assert await waiting
    assert not await tracker.wait_until(lambda: False, 0.01)


# Executors


@pytest.fixture
async def ready(bus: MemoryBus) -> ReadyExecutors:
    ready = ReadyExecutors()
    await ready.listen(bus)
    return ready


async def test_executors_are_counted_by_kind(bus: MemoryBus, ready: ReadyExecutors):
    for id, origin in (("a", "aaaa"), ("b", "aaaa"), ("c", "bbbb")):
        publish_executor(bus, id, origin)
    publish_executor(bus, "d", option="E")
    await run_turns()

    assert (ready.count_ready(L), ready.count_ready(NEW)) == (2, 1)
    assert ready.count_missing({L: 2, NEW: 3}) == {NEW: 1}
    assert ready.ready_ids() == {"a", "b", "c", "d"}


async def test_one_of_no_origin_stands_for_any(bus: MemoryBus, ready: ReadyExecutors):
    publish_executor(bus, "a", "")
    await run_turns()

    assert (ready.count_ready(L), ready.count_ready(NEW)) == (1, 1)


@pytest.mark.parametrize("state", ["draining", "gone"])
async def test_who_leaves_is_not_counted(bus: MemoryBus, ready: ReadyExecutors, state: str):
    publish_executor(bus, "a")
    publish_executor(bus, "a", state=state)
    await run_turns()

    assert ready.count_ready(L) == 0


async def test_who_was_seen_to_die_is_not_counted(bus: MemoryBus, ready: ReadyExecutors):
    publish_executor(bus, "a")
    bus.publish(subjects.event_subject(subjects.GONE), b"a")
    await run_turns()

    assert ready.count_ready(L) == 0


async def test_who_is_silent_is_not_counted_until_it_speaks_again(bus: MemoryBus):
    now = 0.0
    ready = ReadyExecutors(clock=lambda: now)
    await ready.listen(bus)
    publish_executor(bus, "a")
    await run_turns()
    now += EXECUTOR_ABSENT_SECONDS + 1
    silent = ready.count_ready(L)

    publish_executor(bus, "a")
    await run_turns()

    assert (silent, ready.count_ready(L)) == (0, 1)


async def test_waiting_ends_when_the_last_one_is_ready(bus: MemoryBus, ready: ReadyExecutors):
    publish_executor(bus, "a")
    waiting = asyncio.ensure_future(ready.wait_for_kinds({L: 2}, 10.0))
    waiting_named = asyncio.ensure_future(ready.wait_for({"a", "b"}, 10.0))
    await run_turns()
    assert not waiting.done()

    publish_executor(bus, "b")

    assert await waiting
    assert await waiting_named


async def test_waiting_has_an_end(ready: ReadyExecutors):
    assert not await ready.wait_for_kinds({L: 1}, 0.01)
    assert not await ready.wait_for({"a"}, 0.01)
    assert await ready.wait_for_kinds({}, 0.01)


async def test_comings_and_goings_are_told_and_heartbeats_are_not(bus: MemoryBus):
    counts: list[int] = []
    ready = ReadyExecutors()
    await ready.listen(bus, lambda: counts.append(ready.count_ready(L)))

    for state in ("ready", "ready", "draining", "gone"):
        publish_executor(bus, "a", state=state)
    await run_turns()

    assert counts == [1, 0, 0]


async def test_one_that_drains_and_comes_back_is_counted_once(bus: MemoryBus, ready: ReadyExecutors):
    for state in ("ready", "draining", "ready"):
        publish_executor(bus, "a", state=state)
    await run_turns()

    assert (ready.count_ready(L), ready.count_present()) == (1, {L: 1})


async def test_who_drains_is_there_until_it_is_gone(bus: MemoryBus, ready: ReadyExecutors):
    counts = []
    for states in (("ready", "ready"), ("draining", "ready"), ("draining", "draining"), ("gone", "draining")):
        for id, state in zip("ab", states, strict=True):
            publish_executor(bus, id, state=state)
        await run_turns()
        counts.append((ready.count_ready(L), ready.count_present()))

    assert counts == [(2, {L: 2}), (1, {L: 2}), (0, {L: 2}), (0, {L: 1})]


async def test_what_another_build_says_is_not_heard(bus: MemoryBus, ready: ReadyExecutors):
    bus.publish(subjects.event_subject(subjects.EXECUTOR), b'{"v": 99}')
    await run_turns()

    assert ready.ready_ids() == set()


# Gateways


@pytest.fixture
async def gateways(bus: MemoryBus) -> GatewayPlans:
    gateways = GatewayPlans()
    await gateways.listen(bus)
    return gateways


async def test_without_gateways_nobody_is_waited_for(gateways: GatewayPlans):
    assert await gateways.wait_for_plan(5.0, 0.0)


async def test_gateways_are_waited_for_until_all_go_by_the_plan(bus: MemoryBus, gateways: GatewayPlans):
    publish_gateway(bus, "one", 5.0)
    publish_gateway(bus, "two", 4.0)
    await run_turns()

    waiting = asyncio.ensure_future(gateways.wait_for_plan(5.0, 10.0))
    await run_turns()
    assert not waiting.done()
    publish_gateway(bus, "two", 6.0)

    assert await waiting


async def test_a_gateway_that_ends_is_not_waited_for(bus: MemoryBus, gateways: GatewayPlans):
    publish_gateway(bus, "one", 4.0)
    publish_gateway(bus, "one", 4.0, "gone")
    await run_turns()

    assert await gateways.wait_for_plan(5.0, 0.1)


async def test_one_that_says_nothing_costs_the_time_once(bus: MemoryBus, gateways: GatewayPlans):
    publish_gateway(bus, "dead", 4.0)
    await run_turns()

    assert not await gateways.wait_for_plan(5.0, 0.05)
    assert await gateways.wait_for_plan(5.0, 0.0)


async def test_one_that_lives_and_lags_is_waited_for_each_time(bus: MemoryBus, gateways: GatewayPlans):
    await bus.subscribe(subjects.event_subject(subjects.CENSUS), lambda _: publish_gateway(bus, "slow", 4.0))
    publish_gateway(bus, "slow", 4.0)
    await run_turns()

    assert not await gateways.wait_for_plan(5.0, 0.05)
    assert not await gateways.wait_for_plan(5.0, 0.05)
