"""Background acknowledgement of records: JetStream's rejected or lost records are resent, counted and logged once."""

import asyncio
import logging
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import nats.js.api
import psutil
import pytest

from omnibus.bus import Delivery, subjects
from omnibus.bus.nats import NatsBus, acks
from omnibus.bus.nats import bus as nats_bus
from omnibus.errors import BusUnavailable
from omnibus.settings import BusSettings
from omnibus.up import infra
from tests.unit.bus.servers import Owned, run_owned_server
from tests.unit.sidecar.node import wait_until

SUBJECT = subjects.record_subject("chat", "one")


@pytest.fixture(autouse=True)
def resend_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acks, "RESEND_SECONDS", 0.1)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Owned]:
    async with run_owned_server(infra.prepare_nats(tmp_path)) as nats_server:
        yield nats_server


@pytest.fixture
async def bus(server: Owned) -> AsyncIterator[NatsBus]:
    connection = await NatsBus.connect(BusSettings(url=server.server.url), "records")
    await connection.open_records(60.0, 1 << 20)
    yield connection
    await connection.drain()


async def room_for(url: str, messages: int) -> None:
    """Limit the stream to ``messages`` messages; -1 for no limit."""
    client = await nats.connect(url)
    stream = client.jetstream()
    config = (await stream.stream_info(subjects.INVOCATIONS.name)).config
    config.max_msgs, config.discard = messages, nats.js.api.DiscardPolicy.NEW
    await stream.update_stream(config)
    await client.close()


async def suspend_process(process: psutil.Process) -> None:
    """Stop ``process``, and wait until it has stopped: the signal takes its time on a busy machine."""
    process.suspend()
    await wait_until(lambda: process.status() == psutil.STATUS_STOPPED)


async def read_bodies(bus: NatsBus) -> list[bytes]:
    return [delivery.data for delivery in await bus.read_records(subjects.RECORDS)]


async def test_what_is_acknowledged_is_neither_sent_again_nor_held(bus: NatsBus):
    for number in range(100):
        bus.publish_record(SUBJECT, b"x" * 100, f"id-{number}")

    assert bus._acks is not None
    waiting = bus._acks
    await wait_until(lambda: not waiting._sent)

    assert waiting._held_bytes == 0
    assert bus.records_lost == 0
    assert len(await read_bodies(bus)) == 100
    await wait_until(lambda: waiting._timer is None)


async def test_a_full_stream_loses_records_and_says_it_once_until_it_has_room(
    bus: NatsBus, server: Owned, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    await room_for(server.server.url, 1)
    for number in range(5):
        bus.publish_record(SUBJECT, b"%d" % number, f"id-{number}")

    await wait_until(lambda: bus.records_lost == 4)
    assert await read_bodies(bus) == [b"0"]
    assert caplog.text.count("records are lost (maximum messages exceeded)") == 1

    await room_for(server.server.url, -1)
    bus.publish_record(SUBJECT, b"late", "id-late")

    await wait_until(lambda: "JetStream stores records again; 4 were lost so far" in caplog.text)
    assert await read_bodies(bus) == [b"0", b"late"]


async def test_a_stream_that_has_room_again_soon_loses_nothing(
    bus: NatsBus, server: Owned, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(acks, "MAX_SENDS", 1000)
    await room_for(server.server.url, 1)
    for number in range(3):
        bus.publish_record(SUBJECT, b"%d" % number, f"id-{number}")
    assert bus._acks is not None
    waiting = bus._acks
    await wait_until(lambda: any(record.sends > 2 for record in waiting._sent.values()))

    await room_for(server.server.url, -1)

    await wait_until(lambda: not waiting._sent)
    assert sorted(await read_bodies(bus)) == [b"0", b"1", b"2"]
    assert bus.records_lost == 0


async def test_a_server_that_is_silent_for_a_while_keeps_each_record_once(
    bus: NatsBus, server: Owned, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(acks, "MAX_SENDS", 1000)
    process: subprocess.Popen[bytes] | None = server._process
    assert process is not None
    assert bus._acks is not None
    waiting = bus._acks
    process.send_signal(signal.SIGSTOP)
    await wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)  # a busy machine is slow
    for number in range(3):
        bus.publish_record(SUBJECT, b"%d" % number, f"id-{number}")
    await wait_until(lambda: any(record.sends > 2 for record in waiting._sent.values()))

    process.send_signal(signal.SIGCONT)

    await wait_until(lambda: not waiting._sent)
    assert await read_bodies(bus) == [b"0", b"1", b"2"]


async def test_a_server_that_does_not_answer_in_time_is_asked_again(
    server: Owned, bus: NatsBus, monkeypatch: pytest.MonkeyPatch
):
    bus.publish_record(SUBJECT, b"x", "id")
    await wait_until(lambda: bus._acks is not None and not bus._acks._sent)
    monkeypatch.setattr(bus._js, "_timeout", 0.1)
    assert server._process is not None
    process = psutil.Process(server._process.pid)

    await suspend_process(process)
    reading = asyncio.create_task(read_bodies(bus))
    await asyncio.sleep(0.5)
    process.resume()
    assert await reading == [b"x"]

    monkeypatch.setattr(nats_bus, "READ_TIMEOUT_SECONDS", 0.3)
    await suspend_process(process)
    with pytest.raises(BusUnavailable, match=r"was not read within 0\.3 s: try again"):
        await read_bodies(bus)
    process.resume()


async def test_the_answer_to_an_earlier_sending_counts_as_well():
    replies: list[str] = []
    sender = acks.RecordAcks(lambda subject, data, reply, headers: replies.append(reply), "inbox")
    sender.send(SUBJECT, b"x", "id")
    await wait_until(lambda: len(replies) == 2)

    sender.handle_ack(Delivery(replies[0], b'{"stream": "s", "seq": 1}'))

    assert not sender._sent
    assert sender.lost == 0
    await sender.wait_for_acks()


async def test_what_is_not_held_is_counted_after_one_sending(
    bus: NatsBus, server: Owned, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(acks, "MAX_UNACKED_BYTES", 10)
    await room_for(server.server.url, 1)
    bus.publish_record(SUBJECT, b"0", "id-0")
    await wait_until(lambda: bus._acks is not None and not bus._acks._sent)

    bus.publish_record(SUBJECT, b"x" * 11, "id-1")

    await wait_until(lambda: bus.records_lost == 1)


async def test_a_server_that_comes_back_with_less_room_is_said_so(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    config = tmp_path / "nats.conf"
    config.write_text("jetstream { max_file_store: 10MB }")
    async with run_owned_server(infra.prepare_nats(tmp_path, config=config)) as server:
        bus = await NatsBus.connect(BusSettings(url=server.server.url), "records")
        await bus.open_records(60.0, 4 << 20)
        config.write_text("jetstream { max_file_store: 1MB }")

        server.kill()
        await server.start()

        await wait_until(lambda: f"stream {subjects.INVOCATIONS.name} must have" in caplog.text)
        await bus.drain()
