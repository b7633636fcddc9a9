"""Heartbeats of an executor go to a relay while there is one; changes of its state go to all."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from omnibus.bus import messages, subjects
from omnibus.bus.census import Census
from omnibus.bus.relays import RelayStatus
from tests.unit.executor.arithmetic import Place, open_place, put_number
from tests.unit.sidecar.node import wait_until


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with open_place(tmp_path) as new_place:
        yield new_place


async def collect_beats(place: Place, subject: str) -> list[tuple[str, int]]:
    """Return a list that gets state and number of each status on ``subject``."""
    beats: list[tuple[str, int]] = []

    def note_beat(data: bytes) -> None:
        status = messages.decode_status(data)
        beats.append((status.state, status.beat))

    await place.bus.subscribe(subject, lambda delivery: note_beat(delivery.data))
    return beats


def announce_relay(place: Place, state: str = "ready") -> None:
    place.bus.publish(subjects.event_subject(subjects.RELAY), msgspec.json.encode(RelayStatus("g1", state)))


async def test_a_relay_gets_the_heartbeats_and_all_get_the_changes(place: Place):
    everybody = await collect_beats(place, subjects.event_subject(subjects.EXECUTOR))
    relayed = await collect_beats(place, "omnibus.beat.g1")
    executor = await place.executor("e", {"number": put_number})
    await wait_until(lambda: len(everybody) == 1)

    announce_relay(place)
    await wait_until(lambda: len(relayed) >= 2)
    assert len(everybody) <= 2  # the second one was sent before the announcement
    await executor.drain(0.1)
    await wait_until(lambda: everybody[-1][0] == "gone")

    assert [state for state, _ in everybody[-2:]] == ["draining", "gone"]
    beats = [beat for _, beat in sorted([*everybody, *relayed], key=lambda each: each[1])]
    assert beats == sorted(set(beats))
    assert everybody[-1][1] == beats[-1]


async def test_without_the_relay_all_get_the_heartbeats_again(place: Place):
    everybody = await collect_beats(place, subjects.event_subject(subjects.EXECUTOR))
    relayed = await collect_beats(place, "omnibus.beat.g1")
    await place.executor("e", {"number": put_number})
    announce_relay(place)
    await wait_until(lambda: len(relayed) >= 1)

    announce_relay(place, "gone")
    count = len(everybody)
    await wait_until(lambda: len(everybody) >= count + 2)


async def test_a_census_is_answered_to_its_sender(place: Place):
    everybody = await collect_beats(place, subjects.event_subject(subjects.EXECUTOR))
    await place.executor("e", {"number": put_number})
    announce_relay(place)
    census = Census(place.bus, subjects.EXECUTOR)
    answers = await collect_beats(place, census.answer_subject(subjects.EXECUTOR))
    await wait_until(lambda: len(everybody) >= 1)
    count = len(everybody)

    census.ask()
    Census(place.bus, subjects.NODE).ask()
    await wait_until(lambda: len(answers) == 1)

    assert len(everybody) == count
