"""Records in the bus contract, for the in-process bus and NATS."""

from itertools import count
from typing import Any

import pytest

from omnibus.bus import Bus, Delivery, subjects
from omnibus.bus.nats import acks
from omnibus.bus.nats import bus as nats_bus
from omnibus.errors import BusUnavailable, Conflict, TooLarge
from tests.contract.buses import LIMIT, DeliveryCollector
from tests.unit.sidecar.node import wait_until

_number = count()


@pytest.fixture
async def recording_bus(bus: Bus) -> Bus:
    await bus.open_records(60.0, 1 << 20)
    return bus


async def wait_for_records(bus: Bus, subject: str, count: int) -> list[Delivery]:
    """Return the records on ``subject`` once there are ``count``.

    Storage is asynchronous.
    """
    records: list[Delivery] = []

    async def has_enough() -> bool:
        records[:] = await bus.read_records(subject)
        return len(records) >= count

    await wait_until(has_enough)
    return records


async def test_records_come_back_oldest_first_and_by_their_subject(recording_bus: Bus):
    one, two = (subjects.record_subject("chat", f"i-{next(_number)}") for _ in range(2))
    for number in range(3):
        recording_bus.publish_record(one, b"%d" % number, f"{one}.{number}")
        recording_bus.publish_record(two, b"other", f"{two}.{number}")

    records = await wait_for_records(recording_bus, one, 3)

    assert [(delivery.subject, delivery.data) for delivery in records] == [(one, b"0"), (one, b"1"), (one, b"2")]


async def test_a_record_that_is_repeated_is_kept_once(recording_bus: Bus):
    subject = subjects.record_subject("chat", f"i-{next(_number)}")
    for _ in range(3):
        recording_bus.publish_record(subject, b"begin", f"{subject}.0")
    recording_bus.publish_record(subject, b"end", f"{subject}.end")

    assert [delivery.data for delivery in await wait_for_records(recording_bus, subject, 2)] == [b"begin", b"end"]


async def test_records_are_found_without_knowing_their_app(recording_bus: Bus):
    invocation = f"i-{next(_number)}"
    recording_bus.publish_record(subjects.record_subject("my app", invocation), b"x", invocation)

    [record] = await wait_for_records(recording_bus, f"{subjects.ROOT}.inv.*.{invocation}", 1)

    assert record.subject == f"omnibus.inv.my_app.{invocation}"


async def test_what_was_never_recorded_is_an_empty_list(recording_bus: Bus):
    assert await recording_bus.read_records(subjects.record_subject("chat", "never")) == []


async def test_records_can_be_watched_as_they_are_made(recording_bus: Bus):
    collector = DeliveryCollector()
    await recording_bus.subscribe(subjects.RECORDS, collector)
    subject = subjects.record_subject("chat", f"i-{next(_number)}")

    recording_bus.publish_record(subject, b"x", subject)

    assert await collector.wait_for_count(1) == [b"x"]


async def test_a_record_over_the_limit_is_refused_and_not_kept(recording_bus: Bus):
    subject = subjects.record_subject("chat", f"i-{next(_number)}")

    with pytest.raises(TooLarge):
        recording_bus.publish_record(subject, b"x" * (LIMIT + 1), subject)

    recording_bus.publish_record(subject, b"small", f"{subject}.end")
    assert [delivery.data for delivery in await wait_for_records(recording_bus, subject, 1)] == [b"small"]


async def test_opening_the_records_again_loses_nothing(recording_bus: Bus):
    subject = subjects.record_subject("chat", f"i-{next(_number)}")
    recording_bus.publish_record(subject, b"x", subject)

    await recording_bus.open_records(120.0, 2 << 20)

    assert [delivery.data for delivery in await wait_for_records(recording_bus, subject, 1)] == [b"x"]


async def test_the_latest_records_come_with_their_numbers(recording_bus: Bus):
    subject = subjects.record_subject("chat", f"i-{next(_number)}")
    for number in range(5):
        recording_bus.publish_record(subject, b"%d" % number, f"{subject}.{number}")
    await wait_for_records(recording_bus, subject, 5)

    last = await recording_bus.read_latest(subjects.INVOCATIONS, 3)
    before = await recording_bus.read_latest(subjects.INVOCATIONS, 2, last[0].number)

    assert [(record.subject, record.data) for record in last] == [(subject, b"2"), (subject, b"3"), (subject, b"4")]
    assert [entry.data for entry in before] == [b"0", b"1"]
    numbers = [stored.number for stored in (*before, *last)]
    assert numbers == list(range(numbers[0], numbers[0] + 5))


async def test_there_is_nothing_before_the_first_record(recording_bus: Bus):
    subject = subjects.record_subject("chat", f"i-{next(_number)}")
    recording_bus.publish_record(subject, b"x", subject)
    await wait_for_records(recording_bus, subject, 1)

    assert await recording_bus.read_latest(subjects.INVOCATIONS, 10, 1) == []
    assert (await recording_bus.read_latest(subjects.INVOCATIONS, 10_000))[0].number == 1


async def test_streams_keep_their_own_subjects_and_count_by_themselves(recording_bus: Bus):
    await recording_bus.open_records(60.0, 1 << 20, subjects.DEADLETTERS)
    id = f"i-{next(_number)}"
    recording_bus.publish_record(subjects.record_subject("chat", id), b"record", f"{id}.0")
    recording_bus.publish_record(subjects.dead_letter_subject("chat", id), b"letter", f"{id}.dead")

    async def are_stored() -> bool:
        return bool(
            await recording_bus.read_records(subjects.dead_letter_subject("chat", id), subjects.DEADLETTERS)
        ) and bool(await recording_bus.read_records(subjects.record_subject("chat", id)))

    await wait_until(are_stored)

    assert [record.data for record in await recording_bus.read_latest(subjects.DEADLETTERS, 1)] == [b"letter"]
    assert [entry.data for entry in await recording_bus.read_latest(subjects.INVOCATIONS, 1)] == [b"record"]
    assert await recording_bus.read_records(subjects.dead_letter_subject("chat", id)) == []


async def test_a_record_can_be_removed_by_its_subject(recording_bus: Bus):
    await recording_bus.open_records(60.0, 1 << 20, subjects.DEADLETTERS)
    one, two = (subjects.dead_letter_subject("chat", f"i-{next(_number)}") for _ in range(2))
    recording_bus.publish_record(one, b"1", one)
    recording_bus.publish_record(two, b"2", two)

    async def is_removed() -> bool:
        return len(await recording_bus.read_records(two, subjects.DEADLETTERS)) == 1

    await wait_until(is_removed)

    assert await recording_bus.purge_subject(subjects.DEADLETTERS, one) == 1
    assert await recording_bus.purge_subject(subjects.DEADLETTERS, one) == 0
    assert await recording_bus.read_records(one, subjects.DEADLETTERS) == []
    assert len(await recording_bus.read_records(two, subjects.DEADLETTERS)) == 1
    assert [record.data for record in await recording_bus.read_latest(subjects.DEADLETTERS, 1)] == [b"2"]


async def test_a_record_that_no_stream_takes_is_counted_as_lost(recording_bus: Bus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(acks, "RESEND_SECONDS", 0.05)
    before = recording_bus.records_lost
    subject = subjects.record_subject("chat", f"i-{next(_number)}")

    recording_bus.publish_record("nowhere.at.all", b"x", "nowhere")
    recording_bus.publish_record(subject, b"x", subject)

    await wait_until(lambda: recording_bus.records_lost == before + 1)
    assert [delivery.data for delivery in await wait_for_records(recording_bus, subject, 1)] == [b"x"]


async def test_a_stream_that_is_not_there_has_no_latest_records(bus: Bus):
    assert await bus.read_latest(subjects.StreamSpec("NOWHERE", "nowhere.>"), 5) == []


async def test_records_are_appended_behind_the_last_one_alone(bus: Bus):
    await bus.open_records(60.0, 1 << 20, subjects.RESPONSES)
    subject = subjects.response_subject(f"r-{next(_number)}")

    first = await bus.append_record(subjects.RESPONSES, subject, b"one", f"{subject}.0", 0)
    await bus.append_record(
        subjects.RESPONSES, subjects.response_subject(f"r-{next(_number)}"), b"other", f"{subject}.x", 0
    )
    second = await bus.append_record(subjects.RESPONSES, subject, b"two", f"{subject}.1", first)

    assert (
        await bus.append_record(subjects.RESPONSES, subject, b"two", f"{subject}.1", first) == second
    )  # a repeat is the same one
    for after in (0, first):
        with pytest.raises(Conflict):
            await bus.append_record(subjects.RESPONSES, subject, b"three", f"{subject}.late-{after}", after)
    records = await bus.read_subject(subjects.RESPONSES, subject)
    assert [(record.number, record.data) for record in records] == [(first, b"one"), (second, b"two")]
    assert [entry.data for entry in await bus.read_subject(subjects.RESPONSES, subject, first)] == [b"two"]
    assert await bus.read_subject(subjects.RESPONSES, subject, second) == []


async def test_a_log_is_read_by_one_request_and_a_long_one_by_several(bus: Bus, monkeypatch: pytest.MonkeyPatch):
    await bus.open_records(60.0, 1 << 20, subjects.RESPONSES)
    subject, number = subjects.response_subject(f"r-{next(_number)}"), 0
    for index in range(5):
        number = await bus.append_record(subjects.RESPONSES, subject, b"%d" % index, f"{subject}.{index}", number)
    requests: list[str] = []
    publish = bus.publish

    def publish_and_note(subject: str, data: bytes, **more: Any) -> None:
        requests.append(subject)
        publish(subject, data, **more)

    monkeypatch.setattr(bus, "publish", publish_and_note)
    counts = []
    for most in (1000, 2):
        monkeypatch.setattr(nats_bus, "_MAX_BATCH", most)
        records = await bus.read_subject(subjects.RESPONSES, subject)
        assert [record.data for record in records] == [b"%d" % index for index in range(5)]
        counts.append(len(requests))

    assert counts == ([1, 1 + 3] if isinstance(bus, nats_bus.NatsBus) else [0, 0])


async def test_what_no_stream_takes_is_not_appended(bus: Bus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nats_bus, "APPEND_TIMEOUT_SECONDS", 0.2)

    with pytest.raises(BusUnavailable):
        await bus.append_record(subjects.RESPONSES, "omnibus.nobody.keeps", b"one", "lost.0", 0)
