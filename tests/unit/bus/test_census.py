"""A census is answered to the asker alone, by processes of the kinds that it names."""

import msgspec

from omnibus.bus import Delivery, subjects
from omnibus.bus.census import Census, find_answer_subject
from omnibus.bus.messages import ExecutorStatus
from omnibus.cluster.presence import follow_events
from omnibus.settings import BusSettings
from tests.memory_bus import MemoryBus
from tests.unit.omnibus.test_presence import run_turns

STATUS = msgspec.json.encode(ExecutorStatus("a", "m", "L", (), (), "n", "ready", 1))
EVENT = subjects.event_subject(subjects.EXECUTOR)


async def answer_censuses(bus: MemoryBus, kind: str) -> list[str]:
    """Answer as an executor ``a`` does; returns a list that gets the subjects of the answers."""
    sent: list[str] = []

    def answer(census: Delivery) -> None:
        if subject := find_answer_subject(census, kind):
            sent.append(subject)
            bus.publish(subject, STATUS)

    await bus.subscribe(subjects.event_subject(subjects.CENSUS), answer)
    return sent


async def test_only_the_asker_gets_the_answers():
    bus = MemoryBus(BusSettings())
    sent = await answer_censuses(bus, subjects.EXECUTOR)
    first, second = Census(bus, subjects.EXECUTOR), Census(bus, subjects.EXECUTOR)
    heard: dict[str, list[str]] = {"first": [], "second": []}
    for name, census in (("first", first), ("second", second)):
        await follow_events(
            bus, {subjects.EXECUTOR: lambda status, name=name: heard[name].append(status.id)}, census=census
        )

    second.ask()
    await run_turns()

    assert heard == {"first": [], "second": ["a"]}
    assert sent == [second.answer_subject(subjects.EXECUTOR)]


async def test_processes_of_other_kinds_do_not_answer():
    bus = MemoryBus(BusSettings())
    sent = await answer_censuses(bus, subjects.EXECUTOR)

    Census(bus, subjects.NODE, subjects.GATEWAY).ask()
    await run_turns()

    assert sent == []


async def test_a_census_of_a_person_or_an_earlier_build_is_answered_to_all():
    bus = MemoryBus(BusSettings())
    sent = await answer_censuses(bus, subjects.EXECUTOR)

    for body, reply in ((b"{}", ""), (b"?", ""), (b"", "_INBOX.operator.1"), (b"{}", "omnibus.end.x")):
        bus.publish(subjects.event_subject(subjects.CENSUS), body, reply=reply)
    await run_turns()

    assert sent == [EVENT] * 4
