"""Relays join heartbeats into digests, and readers do without them when they fail."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from omnibus.bus import Delivery, subjects
from omnibus.bus.heartbeats import (
    DIGEST_SILENT_SECONDS,
    GATEWAY_ABSENT_SECONDS,
    RELAY_ABSENT_SECONDS,
    WHOLE_STATUS_SECONDS,
)
from omnibus.bus.messages import ExecutorStatus, GatewayStatus
from omnibus.bus.relays import Heartbeat, RelayChoice, RelayStatus, decode_digest, encode_digests
from omnibus.cluster.digests import HeartbeatRelay, StatusFilter
from omnibus.cluster.presence import follow_events
from omnibus.errors import ProtocolError
from omnibus.settings import BusSettings
from tests.memory_bus import MemoryBus

DIGESTS, RELAYS = subjects.event_subject(subjects.DIGEST), subjects.event_subject(subjects.RELAY)
EXECUTORS = subjects.event_subject(subjects.EXECUTOR)


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    bus = MemoryBus(BusSettings())
    yield bus
    await bus.drain()


def make_status(id: str, beat: int = 1, state: str = "ready") -> ExecutorStatus:
    return ExecutorStatus(id, "m", "L", ("thinker",), ("think",), "n", state, 8, beat=beat)


def encode_status(id: str, beat: int = 1, state: str = "ready") -> bytes:
    return msgspec.json.encode(make_status(id, beat, state))


async def wait_for(true: Callable[[], object], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.01)


async def collect(bus: MemoryBus, subject: str) -> list[bytes]:
    heard: list[bytes] = []
    await bus.subscribe(subject, lambda delivery: heard.append(delivery.data))
    return heard


# Executors


def announce(choice: RelayChoice, relay: str, state: str = "ready") -> None:
    choice.handle_announcement(Delivery(RELAYS, msgspec.json.encode(RelayStatus(relay, state))))


def test_an_executor_uses_a_relay_as_long_as_it_is_announced():
    now = 0.0
    choice = RelayChoice("e", lambda: now)
    assert choice.heartbeat_subject() == ""

    announce(choice, "g1")
    assert choice.heartbeat_subject() == "omnibus.beat.g1"
    now += RELAY_ABSENT_SECONDS + 0.1
    assert choice.heartbeat_subject() == ""
    announce(choice, "g2")
    announce(choice, "g2", "gone")
    choice.handle_announcement(Delivery(RELAYS, b'{"v": 99, "id": "g3"}'))
    assert choice.heartbeat_subject() == ""


def test_executors_are_spread_over_the_relays_and_only_those_of_a_lost_one_move():
    choices = [RelayChoice(f"e{number}") for number in range(200)]
    for choice in choices:
        announce(choice, "g1")
        announce(choice, "g2")
    before = [choice.heartbeat_subject() for choice in choices]

    assert 60 < before.count("omnibus.beat.g1") < 140
    for choice in choices:
        announce(choice, "g2", "gone")
    assert {choice.heartbeat_subject() for choice in choices} == {"omnibus.beat.g1"}


# Digests


def test_digests_fit_into_messages_and_lose_nothing():
    statuses = [encode_status(f"e{number}") for number in range(50)]

    digests = list(encode_digests("g", statuses, [], 2000))

    assert len(digests) > 1
    assert max(map(len, digests)) <= 2000
    found = [status.id for digest in map(decode_digest, digests) for status in digest.statuses]
    assert found == [f"e{number}" for number in range(50)]
    [empty] = encode_digests("g", [], [], 2000, last=True)
    assert decode_digest(empty) == decode_digest(b'{"v": 1, "relay": "g", "last": true}')


@pytest.mark.parametrize("body", [b"?", b'{"v": 99, "relay": "g"}', b'{"v": 1, "relay": "g", "statuses": [{"id": 1}]}'])
def test_digests_of_other_builds_are_rejected(body: bytes):
    with pytest.raises(ProtocolError):
        decode_digest(body)


def test_a_digest_cannot_replace_what_an_executor_said_later():
    now = 0.0
    fresh = StatusFilter(lambda: now)
    assert not fresh.is_old(make_status("a", 5))

    fresh.note_direct(make_status("a", 7, "gone"))

    assert fresh.is_old(make_status("a", 6))
    assert not fresh.is_old(make_status("a", 8))
    fresh.note_gone("a")
    assert fresh.is_old(make_status("a", 9))
    now += 1.1
    assert not fresh.is_old(make_status("a", 10))


# Relays


def make_relay(bus: MemoryBus, gateway: str, *others: str, digests: bool = True) -> HeartbeatRelay:
    relay = HeartbeatRelay(gateway, bus)
    for id in (gateway, *others):
        relay.handle_gateway(GatewayStatus(id, 1, 1.0, digests=digests or id == gateway))
    return relay


@pytest.mark.parametrize(
    ("gateway", "others", "elected"),
    [("a", "", False), ("a", "b", False), ("a", "bc", True), ("b", "ac", True), ("c", "abd", False)],
)
async def test_the_first_two_of_many_gateways_are_relays(bus: MemoryBus, gateway: str, others: str, elected: bool):
    assert make_relay(bus, gateway, *others).is_elected() is elected


async def test_a_gateway_that_cannot_read_digests_prevents_them(bus: MemoryBus):
    relay = make_relay(bus, "a", "b", "c", digests=False)
    assert not relay.is_elected()

    for id in "bc":
        relay.handle_gateway(GatewayStatus(id, 1, 1.0, digests=True))
    assert relay.is_elected()
    relay.handle_gateway(GatewayStatus("c", 1, 1.0, "gone"))
    assert not relay.is_elected()


async def test_gateways_that_are_silent_do_not_count(bus: MemoryBus):
    now = 0.0
    relay = HeartbeatRelay("b", bus, lambda: now)
    for id in "aABCb":
        relay.handle_gateway(GatewayStatus(id, 1, 1.0, digests=True))
    assert not relay.is_elected()

    now += GATEWAY_ABSENT_SECONDS + 1
    for id in "bcd":
        relay.handle_gateway(GatewayStatus(id, 1, 1.0, digests=True))

    assert relay.is_elected()


async def test_a_relay_announces_itself_and_publishes_what_it_hears(bus: MemoryBus):
    announcements, digests = await collect(bus, RELAYS), await collect(bus, DIGESTS)
    relay = make_relay(bus, "a", "b", "c")
    relay.startup()
    await wait_for(lambda: announcements)

    for beat in (1, 2):
        bus.publish("omnibus.beat.a", encode_status("e", beat))
    bus.publish("omnibus.beat.a", b"of another build")
    await wait_for(lambda: any(decode_digest(each).beats for each in digests))
    await relay.shutdown()
    await asyncio.sleep(0)

    assert [status.beat for each in digests for status in decode_digest(each).statuses] == [1]
    assert [beat.beat for each in digests for beat in decode_digest(each).beats] == [2]
    assert decode_digest(digests[-1]).last
    assert msgspec.json.decode(announcements[-1])["state"] == "gone"


# Readers


async def test_readers_get_heartbeats_and_digests(bus: MemoryBus):
    statuses: list[tuple[str, int]] = []
    ends = await follow_events(bus, {subjects.EXECUTOR: lambda status: statuses.append((status.id, status.beat))})

    bus.publish(EXECUTORS, encode_status("a", 3))
    for digest in encode_digests("g", [encode_status("a", 2), encode_status("a", 4), encode_status("b", 1)], [], 4000):
        bus.publish(DIGESTS, digest)
    await wait_for(lambda: len(statuses) == 3)

    assert statuses == [("a", 3), ("a", 4), ("b", 1)]
    for end in ends:
        await end()


async def test_a_short_heartbeat_changes_the_last_status(bus: MemoryBus):
    statuses: list[ExecutorStatus] = []
    ends = await follow_events(bus, {subjects.EXECUTOR: statuses.append})
    later = msgspec.structs.replace(make_status("a", 2), inflight=3, steps=9, busy=(1.5,), reconnects=1)
    beats = [msgspec.json.encode(Heartbeat.from_status(each)) for each in (later, make_status("unknown", 2))]
    bus.publish(EXECUTORS, encode_status("a", 1))

    for digest in encode_digests("g", [], beats, 4000):
        bus.publish(DIGESTS, digest)
    await wait_for(lambda: len(statuses) == 2)

    assert statuses == [make_status("a", 1), later]
    for end in ends:
        await end()


def test_a_heartbeat_is_a_small_part_of_a_status():
    status = msgspec.structs.replace(
        make_status("qwen2_5-omni-Th-17"), origin="23e0e22e894e37fb", busy=(1234.5678,), done=(123456,), steps=12345,
        device="NVIDIA H100", memory_bytes=12345678901, takes=("cache_key", "cache_salt", "fallback_temperature"),
    )  # fmt: skip

    assert 4 * len(msgspec.json.encode(Heartbeat.from_status(status))) < len(msgspec.json.encode(status))
    assert Heartbeat.from_status(status).update_status(make_status(status.id)).steps == 12345


async def test_a_relay_repeats_a_whole_status_after_a_change_and_now_and_then(bus: MemoryBus):
    now = 0.0
    digests = await collect(bus, DIGESTS)
    relay = HeartbeatRelay("a", bus, lambda: now)
    for id in "abc":
        relay.handle_gateway(GatewayStatus(id, 1, 1.0, digests=True))
    relay.startup()
    await wait_for(lambda: relay.is_active)

    statuses = [make_status("e", beat) for beat in (1, 2, 3, 4)]
    statuses[2] = msgspec.structs.replace(statuses[2], credits=9)
    statuses[3] = msgspec.structs.replace(statuses[3], credits=9)
    for status in statuses:
        bus.publish("omnibus.beat.a", msgspec.json.encode(status))
    await wait_for(lambda: sum(len(decode_digest(each).beats) for each in digests) == 2)
    now += WHOLE_STATUS_SECONDS + 0.1
    bus.publish("omnibus.beat.a", msgspec.json.encode(msgspec.structs.replace(statuses[3], beat=5)))
    await wait_for(lambda: sum(len(decode_digest(each).statuses) for each in digests) == 3)
    await relay.shutdown()

    assert [status.beat for each in digests for status in decode_digest(each).statuses] == [1, 3, 5]


async def test_a_reader_of_a_silent_relay_hears_the_heartbeats_before_executors_count_as_silent(bus: MemoryBus):
    statuses: list[int] = []
    ends = await follow_events(bus, {subjects.EXECUTOR: lambda status: statuses.append(status.beat)})
    [digest] = encode_digests("g", [encode_status("a", 1)], [], 4000)
    bus.publish(DIGESTS, digest)
    await wait_for(lambda: statuses == [1])

    bus.publish("omnibus.beat.g", encode_status("a", 2))
    await asyncio.sleep(DIGEST_SILENT_SECONDS + 0.2)
    bus.publish("omnibus.beat.g", encode_status("a", 3))
    await wait_for(lambda: statuses == [1, 3])

    for end in ends:
        await end()


async def test_a_reader_that_paused_reads_the_digests_first(bus: MemoryBus):
    statuses: list[int] = []
    ends = await follow_events(bus, {subjects.EXECUTOR: lambda status: statuses.append(status.beat)})
    [digest] = encode_digests("g", [], [], 4000)
    bus.publish(DIGESTS, digest)
    await asyncio.sleep(0.05)

    time.sleep(DIGEST_SILENT_SECONDS + 0.2)  # noqa: ASYNC251 the pause
    await asyncio.sleep(0.05)
    bus.publish("omnibus.beat.g", encode_status("a", 3))
    await asyncio.sleep(0.05)

    assert statuses == []
    for end in ends:
        await end()


async def test_a_reader_of_a_relay_that_stops_expects_nothing_more(bus: MemoryBus):
    statuses: list[int] = []
    ends = await follow_events(bus, {subjects.EXECUTOR: lambda status: statuses.append(status.beat)})
    for last in (False, True):
        for digest in encode_digests("g", [], [], 4000, last=last):
            bus.publish(DIGESTS, digest)
    await asyncio.sleep(DIGEST_SILENT_SECONDS + 0.2)

    bus.publish("omnibus.beat.g", encode_status("a", 3))
    await asyncio.sleep(0.05)

    assert statuses == []
    for end in ends:
        await end()
