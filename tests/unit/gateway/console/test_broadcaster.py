"""The console's live states, sent to all viewers from one shared watch."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path as File
from typing import Any

import msgspec
import pytest

from omnibus.bus import Bus, subjects
from omnibus.cluster.monitor import monitor
from omnibus.errors import BusUnavailable, Overloaded
from omnibus.settings import BusSettings, StoreSettings
from omnibus.store import Store
from omnibus.up import infra
from omnibus_gateway.console import broadcaster
from omnibus_gateway.console.broadcaster import LiveStates
from tests.memory_bus import MemoryBus
from tests.unit.bus.servers import run_owned_server
from tests.unit.cli.watched import TYPE, LoadCounts, make_event, make_plan, make_status
from tests.unit.sidecar.node import PATIENCE, wait_until


@pytest.fixture
async def store(valkey_url: str) -> AsyncIterator[Store]:
    live_store = Store(StoreSettings(url=valkey_url, prefix="live"))
    yield live_store
    await live_store.close()


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    memory_bus = MemoryBus(BusSettings())
    yield memory_bus
    await memory_bus.drain()


@pytest.fixture
def shorten_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcaster, "MIN_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(broadcaster, "MAX_INTERVAL_SECONDS", 0.02)


async def wait_for_state(states: Any, true: Any = lambda _: True) -> dict[str, Any]:
    """Return the next state for which ``true`` holds."""
    async with asyncio.timeout(PATIENCE):
        async for body in states:
            document = json.loads(body) if body else {}
            if document and true(document):
                return document
    raise AssertionError("the states ended")


def publish_event(bus: Bus, kind: str, message: Any) -> None:
    bus.publish(subjects.event_subject(kind), msgspec.json.encode(message))


@pytest.mark.usefixtures("shorten_intervals")
async def test_what_executors_and_gateways_say_becomes_a_state(store: Store, bus: MemoryBus):
    await store.swap_plan(make_plan(await store.epoch() + 1))
    watching = LiveStates(store, bus)

    async with aclosing(watching.stream_states()) as states:
        first = await wait_for_state(states)
        publish_event(bus, subjects.EXECUTOR, make_status("a", inflight=2))
        publish_event(bus, subjects.LOAD, make_event(inflight=2, **{TYPE: LoadCounts(3, 1, first=0.5, total=1.0)}))
        told = await wait_for_state(states, lambda told: told["inflight"] == 2 and told["executors"][1]["up"] == 1)

    assert first["epoch"] == await store.epoch()
    assert told["models"]["m"][TYPE]["came"] > 0
    assert told["executors"][1]["inflight"] == 2


@pytest.mark.usefixtures("shorten_intervals")
async def test_a_new_plan_is_told_to_everybody(store: Store, bus: MemoryBus):
    epoch = await store.epoch() + 1
    await store.swap_plan(make_plan(epoch))
    watching = LiveStates(store, bus)

    async with aclosing(watching.stream_states()) as one, aclosing(watching.stream_states()) as other:
        await asyncio.gather(wait_for_state(one), wait_for_state(other))
        await store.swap_plan(make_plan(epoch + 1, thinkers=3))
        told = await asyncio.gather(
            *(wait_for_state(each, lambda told: told["epoch"] == epoch + 1) for each in (one, other))
        )

    assert [each["executors"][1]["wanted"] for each in told] == [3, 3]


@pytest.mark.usefixtures("shorten_intervals")
async def test_the_watch_ends_with_the_last_who_looks(store: Store, bus: MemoryBus):
    watching = LiveStates(store, bus)
    one, other = watching.stream_states(), watching.stream_states()
    await asyncio.gather(wait_for_state(one), wait_for_state(other))
    before = {task for task in asyncio.all_tasks() if "_watch_states" in repr(task)}

    await one.aclose()
    after_one = watching.viewer_count
    await other.aclose()

    assert (len(before), after_one, watching.viewer_count) == (1, 1, 0)
    assert all(task.done() for task in before)


async def test_nothing_new_is_not_told_again(store: Store, bus: MemoryBus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(broadcaster, "KEEPALIVE_SECONDS", 0.2)
    monkeypatch.setattr(broadcaster, "MIN_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(broadcaster, "MAX_INTERVAL_SECONDS", 0.02)
    watching = LiveStates(store, bus)

    async with aclosing(watching.stream_states()) as states, asyncio.timeout(PATIENCE):
        await anext(states)
        bodies = [await anext(states) for _ in range(2)]

    assert b"" in bodies


@pytest.mark.usefixtures("shorten_intervals")
async def test_a_store_that_is_away_is_said(tmp_path: File, bus: MemoryBus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(monitor, "RETRY_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(monitor, "REREAD_SECONDS", 0.05)
    async with run_owned_server(infra.prepare_valkey(tmp_path)) as valkey:
        store = Store(StoreSettings(url=valkey.server.url, timeout=0.5))
        await store.swap_plan(make_plan(1))
        watching = LiveStates(store, bus)
        async with aclosing(watching.stream_states()) as states:
            whole = await wait_for_state(states, lambda told: told["epoch"] == 1)
            valkey.kill()
            away = await wait_for_state(states, lambda told: told["away"])
        await store.close()

    assert whole["away"] == []
    assert away["away"][0].startswith("the store, for")
    assert away["epoch"] == 1


@pytest.mark.usefixtures("shorten_intervals")
async def test_whoever_looks_is_told_when_the_gateway_leaves(store: Store, bus: MemoryBus):
    watching = LiveStates(store, bus)
    states = watching.stream_states()
    await wait_for_state(states)

    await watching.close()

    with pytest.raises(BusUnavailable, match="stopping"):
        await wait_for_state(states)
    await wait_until(lambda: watching.viewer_count == 0)


@pytest.mark.usefixtures("shorten_intervals")
async def test_too_many_who_look_are_sent_away(store: Store, bus: MemoryBus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(broadcaster, "MAX_VIEWERS", 1)
    watching = LiveStates(store, bus)

    async with aclosing(watching.stream_states()) as one:
        await wait_for_state(one)
        with pytest.raises(Overloaded, match="viewers"):
            await anext(watching.stream_states())
