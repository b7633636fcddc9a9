"""Executors during a measurement: their reports, and an exit that stops it."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from omnibus.bus import subjects
from omnibus.bus.messages import ExecutorStatus
from omnibus.errors import StageFailed
from omnibus.profiling import monitor as module
from omnibus.profiling.monitor import ExecutorMonitor
from omnibus.settings import BusSettings
from tests.memory_bus import MemoryBus


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    bus = MemoryBus(BusSettings())
    yield bus
    await bus.drain()


@pytest.fixture
async def monitor(bus: MemoryBus) -> ExecutorMonitor:
    monitor = ExecutorMonitor(bus)
    await monitor.listen()
    return monitor


def publish_report(bus: MemoryBus, state: str = "ready", busy: float = 0.0) -> None:
    status = ExecutorStatus("m-L-0", "m", "L", ("thinker",), ("think",), "n", state, 1, busy=(busy,))
    bus.publish(subjects.event_subject(subjects.EXECUTOR), msgspec.json.encode(status))


async def test_busy_time_is_that_of_an_answer_to_the_census(bus: MemoryBus, monitor: ExecutorMonitor):
    publish_report(bus, busy=1.0)
    assert await monitor.wait_until(lambda: bool(monitor.ready_executors("m", "L")), 10.0)
    await bus.subscribe(subjects.event_subject(subjects.CENSUS), lambda _: publish_report(bus, busy=2.0))

    assert (await monitor.read_busy(["m-L-0"]))["m-L-0"].seconds == {"thinker": 2.0}
    assert [each.id for each in monitor.ready_executors("m", "L")] == ["m-L-0"]
    assert monitor.ready_since("m-L-0") > 0.0


async def test_one_that_does_not_answer_is_silent(
    bus: MemoryBus, monitor: ExecutorMonitor, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "STATUS_TIMEOUT_SECONDS", 0.02)
    publish_report(bus)
    assert await monitor.wait_until(lambda: bool(monitor.ready_executors("m", "L")), 10.0)

    with pytest.raises(StageFailed, match="m-L-0 does not report its status"):
        await monitor.read_busy(["m-L-0"])


async def test_its_end_ends_what_is_measured(bus: MemoryBus, monitor: ExecutorMonitor):
    measuring = asyncio.ensure_future(monitor.unless_ended({"m-L-0": "L"}, asyncio.sleep(600.0)))
    publish_report(bus)
    assert await monitor.wait_until(lambda: bool(monitor.ready_executors("m", "L")), 10.0)

    bus.publish(subjects.event_subject(subjects.GONE), b"m-L-0")

    with pytest.raises(StageFailed, match="m-L-0 of option L ended"):
        await measuring
    assert monitor.ready_executors("m", "L") == []
    assert monitor.end_count("m", "L") == 1
