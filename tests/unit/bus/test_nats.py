"""Behaviour that needs a real server: restarts, old versions, JetStream, micro services, raw clients."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
import uvloop
from nats.aio.client import Client

from omnibus.bus import Delivery, subjects
from omnibus.bus.nats import NatsBus, connection
from omnibus.errors import BusUnavailable, Fatal, ProtocolError, TooLarge
from omnibus.settings import BusSettings
from omnibus.up import infra
from omnibus.up.ports import free_ports
from tests.unit.bus.servers import run_owned_server
from tests.unit.sidecar.node import wait_until

PATIENCE = 10.0  # seconds


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[NatsBus]:
    nats_bus = await NatsBus.connect(BusSettings(url=nats_url), "test")
    yield nats_bus
    await nats_bus.drain()


@pytest.fixture
async def raw_client(nats_url: str) -> AsyncIterator[Client]:
    """A plain NATS client without Omnibus."""
    client = await nats.connect(nats_url)
    yield client
    await client.close()


# Restarts


async def test_subscriptions_and_records_outlive_a_killed_server(tmp_path: Path):
    async with run_owned_server(infra.prepare_nats(tmp_path)) as nats_server:
        bus = await NatsBus.connect(BusSettings(url=nats_server.server.url), "test")
        messages: list[bytes] = []
        await bus.subscribe("a.*", lambda delivery: messages.append(delivery.data))
        await bus.open_records(60.0, 1 << 20)
        bus.publish_record(subjects.record_subject("chat", "i"), b"kept", "i")

        async def record_exists() -> bool:
            return len(await bus.read_records(subjects.record_subject("chat", "i"))) == 1

        await wait_until(record_exists)
        assert (bus.connected, bus.reconnects) == (True, 0)

        nats_server.kill()
        await wait_until(lambda: not bus.connected)
        bus.publish("a.b", b"while it was away")
        await nats_server.start()
        await wait_until(lambda: bus.connected)

        assert bus.reconnects == 1
        bus.publish("a.b", b"afterwards")
        await wait_until(lambda: messages == [b"while it was away", b"afterwards"])
        assert await record_exists()
        await bus.drain()


async def test_a_lazy_message_leaves_with_the_next_one_or_alone(bus: NatsBus, monkeypatch: pytest.MonkeyPatch):
    messages: list[bytes] = []
    await bus.subscribe("lazy.*", lambda delivery: messages.append(delivery.data))
    monkeypatch.setattr(connection, "LAZY_COMMAND_SECONDS", 0.0)
    bus.publish("lazy.a", b"alone", lazy=True)
    await wait_until(lambda: messages == [b"alone"])
    monkeypatch.setattr(connection, "LAZY_COMMAND_SECONDS", 60.0)
    bus.publish("lazy.a", b"waits", lazy=True)
    await asyncio.sleep(0.01)
    before = list(messages)

    bus.publish("lazy.b", b"takes it along")

    await wait_until(lambda: messages == [b"alone", b"waits", b"takes it along"])
    assert before == [b"alone"]


async def test_what_is_published_in_turns_that_follow_each_other_leaves_together(
    bus: NatsBus, monkeypatch: pytest.MonkeyPatch
):
    messages: list[bytes] = []
    await bus.subscribe("turn.*", lambda delivery: messages.append(delivery.data))
    flushes: list[int] = []
    flush = bus._nc._flush_pending_commands
    monkeypatch.setattr(bus._nc, "_flush_pending_commands", lambda: (flushes.append(len(messages)), flush()))
    monkeypatch.setattr(connection, "JOIN_SECONDS", 60.0)

    for number in range(3):
        bus.publish("turn.a", b"%d" % number)
        bus.call_before_flush(lambda: bus.publish("turn.a", b"last"))
        await asyncio.sleep(0)
    await wait_until(lambda: messages == [b"0", b"1", b"2", b"last", b"last", b"last"])
    joined_count = len(flushes)
    monkeypatch.setattr(connection, "JOIN_SECONDS", 0.0)
    for _ in range(3):
        bus.publish("turn.a", b"alone")
        await asyncio.sleep(0)
    await wait_until(lambda: len(messages) == 9)

    assert (joined_count, len(flushes)) == (1, 4)


def test_a_bus_closes_without_its_server_though_messages_are_left(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    async def close_alone() -> bool:
        async with run_owned_server(infra.prepare_nats(tmp_path)) as nats_server:
            bus = await NatsBus.connect(BusSettings(url=nats_server.server.url), "test")
            nats_server.kill()
            await wait_until(lambda: not bus.connected)
            bus.publish("a.b", b"nobody takes it")
            await bus.drain()
            return bus.connected

    assert not uvloop.run(close_alone())
    assert "NATS did not take the last messages before closing" in caplog.messages


async def test_a_server_that_is_not_there_is_named():
    [port] = free_ports(1)

    with pytest.raises(BusUnavailable, match=f"no NATS server at nats://127.0.0.1:{port}"):
        await NatsBus.connect(BusSettings(url=f"nats://127.0.0.1:{port}", connect_timeout=0.3), "test")


async def test_a_server_that_says_nothing_is_given_up_in_time():
    silent = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]

    async with asyncio.timeout(PATIENCE):
        with pytest.raises(BusUnavailable, match=str(port)):
            await NatsBus.connect(BusSettings(url=f"nats://127.0.0.1:{port}", connect_timeout=0.3), "test")
    silent.close()


async def speak_protocol(version: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Speak just enough of the protocol for a client to connect."""
    info = {"server_id": "X", "version": version, "max_payload": 1 << 20, "headers": True, "proto": 1}
    writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
    while line := await reader.readline():
        if line.startswith(b"PING"):
            writer.write(b"PONG\r\n")
    writer.close()


@pytest.mark.parametrize("version", ["2.9.10", "2.11.99", "1.99.0"])
async def test_a_server_that_is_too_old_is_refused(version: str):
    old = await asyncio.start_server(lambda reader, writer: speak_protocol(version, reader, writer), "127.0.0.1", 0)
    port = old.sockets[0].getsockname()[1]

    with pytest.raises(Fatal, match=rf"{version}.* is too old: Omnibus needs 2\.12"):
        await NatsBus.connect(BusSettings(url=f"nats://127.0.0.1:{port}"), "test")
    old.close()


async def test_the_oldest_server_that_will_do_is_accepted():
    enough = await asyncio.start_server(lambda reader, writer: speak_protocol("2.12.0", reader, writer), "127.0.0.1", 0)
    port = enough.sockets[0].getsockname()[1]

    bus = await NatsBus.connect(BusSettings(url=f"nats://127.0.0.1:{port}"), "test")

    assert bus.connected
    await bus.drain()
    enough.close()


async def test_a_wrong_password_is_said(tmp_path: Path):
    config = tmp_path / "users.conf"
    config.write_text('authorization { users = [ {user: "gateway", password: "right"} ] }')
    async with run_owned_server(infra.prepare_nats(tmp_path, config=config)) as nats_server:
        url = nats_server.server.url
        good = BusSettings(url=url, user="gateway", password="right", connect_timeout=5)
        await (await NatsBus.connect(good, "test")).drain()

        bad = BusSettings(url=url, user="gateway", password="wrong", connect_timeout=1)
        with pytest.raises(BusUnavailable, match=f"{url} refuses user 'gateway': check OMNIBUS_BUS_USER and"):
            await NatsBus.connect(bad, "test")


@pytest.mark.behaviour(
    "nats-py 2.16",
    "compares the data alone with `max_payload`; the server counts headers too and closes the connection",
    "counts headers and data, and raises a typed error before anything is sent",
    source="NATS protocol, HPUB: total bytes = headers + payload",
)
async def test_headers_that_the_server_would_count_never_end_the_connection(tmp_path: Path):
    config = tmp_path / "small.conf"
    config.write_text("max_payload: 65536\n")
    async with run_owned_server(infra.prepare_nats(tmp_path, config=config)) as nats_server:
        bus = await NatsBus.connect(BusSettings(url=nats_server.server.url), "test")
        await bus.open_records(90.0, 1 << 19)

        for size in (65536 - 20, 65536):
            with pytest.raises(TooLarge, match="over the bus limit of 65536"):
                bus.publish("a", b"x" * size, headers={"Traceparent": "0" * 55})
        with pytest.raises(TooLarge, match="over the bus limit of 65536"):
            await bus.store_record(f"{subjects.record_subject('a', 'b')}", b"x" * 65536, "id")
        await bus.store_record(subjects.record_subject("a", "b"), b"x" * bus.max_body, "id")

        assert [len(each.data) for each in await bus.read_records(subjects.record_subject("a", "b"))] == [bus.max_body]
        assert (bus.connected, bus.reconnects) == (True, 0)
        await bus.drain()


async def test_a_server_that_takes_smaller_messages_is_rejected_by_name(tmp_path: Path):
    config = tmp_path / "small.conf"
    config.write_text("max_payload: 32768\n")
    async with run_owned_server(infra.prepare_nats(tmp_path, config=config)) as nats_server:
        with pytest.raises(Fatal, match="at most 32768 bytes .* or lower OMNIBUS_BUS_MAX_PAYLOAD"):
            await NatsBus.connect(BusSettings(url=nats_server.server.url), "test")

        bus = await NatsBus.connect(BusSettings(url=nats_server.server.url, max_payload=32768), "test")

        assert bus.max_body == 32768 - 1024
        await bus.drain()


@pytest.mark.parametrize("subject", ["a b", "a\r\nPUB b 0", "a\tb", "a\x00", "a\x7f"])
async def test_no_subject_becomes_protocol(bus: NatsBus, subject: str):
    with pytest.raises(ProtocolError, match="is not a subject"):
        bus.publish(subject, b"{}")
    with pytest.raises(ProtocolError, match="is not a subject"):
        bus.publish("a", b"{}", reply=subject)


# JetStream


async def test_the_record_stream_is_limited_by_age_and_bytes(bus: NatsBus, raw_client: Client):
    await bus.open_records(90.0, 1 << 19)
    await bus.open_records(60.0, 1 << 20)  # the settings have changed

    config = (await raw_client.jetstream().stream_info(subjects.INVOCATIONS.name)).config

    assert list(config.subjects or []) == ["omnibus.inv.>"]
    assert (config.retention, config.discard) == ("limits", "old")
    assert (config.max_age, config.max_bytes) == (60.0, 1 << 20)


async def test_a_foreign_stream_of_the_same_name_is_left_alone(bus: NatsBus, raw_client: Client):
    await bus.open_records(60.0, 1 << 20)
    await raw_client.jetstream().delete_stream(subjects.INVOCATIONS.name)
    await raw_client.jetstream().add_stream(name=subjects.INVOCATIONS.name, subjects=["elsewhere.>"])

    with pytest.raises(Fatal, match="elsewhere"):
        await bus.open_records(60.0, 1 << 20)
    await raw_client.jetstream().delete_stream(subjects.INVOCATIONS.name)


async def test_a_server_without_room_for_a_stream_is_refused_with_advice(tmp_path: Path):
    config = tmp_path / "small.conf"
    config.write_text("jetstream { max_file_store: 1MB }")
    async with run_owned_server(infra.prepare_nats(tmp_path, config=config)) as nats_server:
        bus = await NatsBus.connect(BusSettings(url=nats_server.server.url), "test")

        await bus.open_records(60.0, 1 << 20)
        with pytest.raises(
            Fatal, match=r"no room for the 65536 bytes of stream OMNIBUS_DEADLETTERS: raise max_file_store"
        ):
            await bus.open_records(60.0, 1 << 16, subjects.DEADLETTERS)
        await bus.drain()


async def test_a_server_without_jetstream_is_refused_with_advice(tmp_path: Path):
    async with run_owned_server(infra.prepare_nats(tmp_path), without="-js") as nats_server:
        bus = await NatsBus.connect(BusSettings(url=nats_server.server.url), "test")

        with pytest.raises(Fatal, match="start nats-server with -js"):
            await bus.open_records(60.0, 1 << 20)
        await bus.drain()


# Micro services and raw clients


async def echo_data(delivery: Delivery) -> AsyncIterator[bytes]:
    yield delivery.data


async def request_service(raw: Client, verb: str, name: str) -> dict[str, Any]:
    return json.loads((await raw.request(f"$SRV.{verb}.{name}", b"", timeout=PATIENCE)).data)


async def test_a_registered_service_answers_ping_info_and_stats(bus: NatsBus, raw_client: Client):
    await bus.register_service(
        "omnibus-EL", {"executor": "e-0"}, {"encode-m": ("omnibus.task.encode-m", echo_data)}, lambda name: {"of": name}
    )

    ping, info = (
        await request_service(raw_client, "PING", "omnibus-EL"),
        await request_service(raw_client, "INFO", "omnibus-EL"),
    )
    stats = await request_service(raw_client, "STATS", "omnibus-EL")

    assert (ping["name"], ping["metadata"]["executor"]) == ("omnibus-EL", "e-0")
    assert [each["subject"] for each in info["endpoints"]] == ["omnibus.task.encode-m"]
    assert stats["endpoints"][0]["data"] == {"of": "encode-m"}


async def test_any_client_may_ask_a_registered_service(bus: NatsBus, raw_client: Client):
    await bus.register_service("omnibus-Q", {}, {"echo": ("omnibus.task.echo", echo_data)})

    assert (await raw_client.request("omnibus.task.echo", b"hello", timeout=PATIENCE)).data == b"hello"


async def test_nobody_who_asks_for_nothing_disturbs_a_service(bus: NatsBus, raw_client: Client):
    await bus.register_service("omnibus-Q", {}, {"quiet": ("omnibus.task.quiet", echo_data)})

    await raw_client.publish("omnibus.task.quiet", b"no reply wanted")

    assert (await raw_client.request("omnibus.task.quiet", b"hello", timeout=PATIENCE)).data == b"hello"
    assert (bus.connected, bus.reconnects) == (True, 0)


# Cancellation


async def test_a_flush_that_is_cancelled_as_its_answer_arrives_is_cancelled(bus, monkeypatch):
    """The library would return normally and lose the timeout."""
    task = asyncio.create_task(bus._flush_connection(5))
    original = bus._nc._process_pong

    async def cancelling_pong() -> None:
        await original()
        task.cancel()

    monkeypatch.setattr(bus._nc, "_process_pong", cancelling_pong)

    with pytest.raises(asyncio.CancelledError):
        await task
