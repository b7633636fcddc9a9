"""``omnibus top`` on real servers, including servers that are down."""

import asyncio
import io
import logging
import os
import signal
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path as File
from typing import Any

import msgspec
import pytest
import redis

from omnibus.bus import subjects
from omnibus.bus.messages import LoadCounts, LoadEvent
from omnibus.bus.nats import NatsBus
from omnibus.cli import main, top
from omnibus.cluster.monitor import monitor
from omnibus.settings import BusSettings, StoreSettings
from omnibus.store import Store
from omnibus.up import infra
from tests.unit.bus.servers import run_owned_server
from tests.unit.cli.watched import TYPE, make_plan, make_status, split_rows
from tests.unit.sidecar.node import PATIENCE, wait_until


@pytest.fixture
def isolate_system(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty store, and an environment without addresses of other servers."""
    for name in ("OMNIBUS_STORE_URL", "OMNIBUS_BUS_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(top, "SAMPLE_SECONDS", 0.5)
    with redis.Redis.from_url(valkey_url) as raw:
        raw.flushall()


@pytest.mark.usefixtures("isolate_system")
def test_once_prints_what_runs_now(nats_url: str, valkey_url: str, capsys: pytest.CaptureFixture[str]):
    async def run_once() -> int:
        store = Store(StoreSettings(url=valkey_url))
        await store.swap_plan(make_plan(1))
        bus = await NatsBus.connect(BusSettings(url=nats_url), "crowd")
        beats = asyncio.create_task(_send_beats(bus))
        try:
            return await top.run_top(make_options(nats_url, valkey_url, once=True))
        finally:
            beats.cancel()
            await bus.drain()
            await store.close()

    assert asyncio.run(run_once()) == 0

    table = split_rows(capsys.readouterr().out.splitlines())
    assert table["plan"] == ["epoch 1, made 5 min ago"]
    assert table["now"][0].startswith("1 gateway, 2 requests in flight; ")
    assert float(table[TYPE][0]) > 0
    assert table["m/L"][:2] == ["1", "1"]
    assert table["m/E"][:2] == ["1", "0"]


async def _send_beats(bus: NatsBus) -> None:
    """Send heartbeats as one executor and one gateway."""
    for beat in range(1000):
        bus.publish(subjects.event_subject(subjects.EXECUTOR), msgspec.json.encode(make_status("a", busy=beat * 0.01)))
        load_event = LoadEvent("g", 1, 0.05, 2, {"m": {TYPE: LoadCounts(came=1, done=1)}})
        bus.publish(subjects.event_subject(subjects.LOAD), msgspec.json.encode(load_event))
        bus.publish(subjects.event_subject(subjects.LOAD), b"of another build")
        await asyncio.sleep(0.05)


def make_options(nats_url: str, valkey_url: str, **more: Any) -> Namespace:
    return Namespace(**{"nats": nats_url, "store": valkey_url, "once": False, "json": False, "every": 0.1, **more})


@pytest.mark.usefixtures("isolate_system")
def test_ctrl_c_ends_it_well(nats_url: str, valkey_url: str, capsys: pytest.CaptureFixture[str]):
    async def run_until_interrupt() -> int:
        watching = asyncio.create_task(top.run_top(make_options(nats_url, valkey_url, json=True)))
        output = io.StringIO()

        def printed_twice() -> bool:
            output.write(capsys.readouterr().out)
            return output.getvalue().count("\n") >= 2

        await wait_until(printed_twice)
        os.kill(os.getpid(), signal.SIGINT)
        return await watching

    assert asyncio.run(run_until_interrupt()) == 0


@pytest.mark.usefixtures("isolate_system")
def test_a_store_or_a_bus_that_is_not_there_is_named(
    nats_url: str, valkey_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OMNIBUS_BUS_CONNECT_TIMEOUT", "0.3")
    monkeypatch.setenv("OMNIBUS_BUS_URL", "nats://127.0.0.1:1")

    assert main(["top", "--store", "redis://127.0.0.1:1", "--nats", nats_url, "--once"]) == 1
    assert "no store at redis://127.0.0.1:1" in capsys.readouterr().err
    assert main(["top", "--store", valkey_url, "--once"]) == 1
    assert "no NATS server at nats://127.0.0.1:1" in capsys.readouterr().err
    assert main(["top", "--every", "0"]) == 1
    assert "seconds must be between" in capsys.readouterr().err


async def test_restarts_of_the_bus_and_the_store_are_said_and_survived(tmp_path: File, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(monitor, "RETRY_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(monitor, "REREAD_SECONDS", 0.05)
    monkeypatch.setattr(monitor, "CENSUS_INTERVAL_SECONDS", 0.0)
    (tmp_path / "bus").mkdir()
    async with (
        asyncio.timeout(PATIENCE * 2),
        run_owned_server(infra.prepare_nats(tmp_path / "bus")) as nats,
        run_owned_server(infra.prepare_valkey(tmp_path)) as valkey,
    ):
        store = Store(StoreSettings(url=valkey.server.url))
        await store.swap_plan(make_plan(1))
        bus = await NatsBus.connect(BusSettings(url=nats.server.url), "cli")
        crowd = await NatsBus.connect(BusSettings(url=nats.server.url), "crowd")
        await crowd.subscribe(
            subjects.event_subject(subjects.CENSUS),
            lambda _: crowd.publish(subjects.event_subject(subjects.EXECUTOR), msgspec.json.encode(make_status("a"))),
        )
        async with monitor.Watch(store, bus).following() as watch:

            def has_message(word: str) -> Callable[[], bool]:
                return lambda: (
                    any(word in each for each in watch.poll_presence()) if word else not watch.poll_presence()
                )

            def is_present() -> bool:
                return not watch.poll_presence() and bool(watch.seen.ready_counts()) and watch.seen.plan is not None

            await wait_until(is_present)
            valkey.kill()
            await wait_until(has_message("the store, for"))
            nats.kill()
            await wait_until(has_message("the bus, for"))
            watch.seen.handle_gone("a")
            await nats.start()
            await valkey.start()
            await wait_until(has_message(""))
            await wait_until(lambda: watch.seen.plan is None)  # it was in memory
            again = Store(StoreSettings(url=valkey.server.url))  # the first one may have dead connections
            await again.swap_plan(make_plan(1, thinkers=2))
            await wait_until(lambda: is_present() and watch.seen.plan.models["m"].options["L"].replicas == 2)  # type: ignore[union-attr]
        for connection in (bus, crowd):
            await connection.drain()
        for each in (store, again):
            await each.close()


@pytest.fixture(autouse=True)
def restore_handlers() -> Iterator[None]:
    """Restore warnings, which the command keeps off the screen."""
    before = list(logging.getLogger().handlers)
    yield
    logging.getLogger().handlers[:] = before
