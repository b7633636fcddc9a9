"""The log of a response, and the numbers of its events: torn lines, late writers, and answers that differ."""

import base64
import json
from typing import Any

import pytest

from omnibus.bus import subjects
from omnibus.errors import CannotContinue, Conflict, ProtocolError
from omnibus_gateway.openai.responses.sequence import EventSequence, NumberedEvent
from omnibus_gateway.responses import log
from omnibus_gateway.responses.log import LogContent, LogReader, ResponseLog, read_log
from tests.memory_bus import MemoryBus

DELTA = "response.output_text.delta"


def make_delta(text: str, type: str = DELTA) -> dict[str, Any]:
    return {"type": type, "delta": text}


@pytest.fixture
async def bus() -> MemoryBus:
    memory_bus = MemoryBus()
    await memory_bus.open_records(60.0, 1 << 20, subjects.RESPONSES)
    return memory_bus


async def test_long_events_are_put_together_from_their_pieces(bus: MemoryBus):
    events = EventSequence().number([make_delta("x" * 150_000), make_delta("short")])
    await ResponseLog(bus, "r").append(events, [1, 2**32 - 1])

    content = await read_log(bus, "r")

    assert content.events == events
    assert content.token_ids == [1, 2**32 - 1]
    assert content.pieces == 4


async def test_a_line_without_an_end_is_dropped_when_another_gateway_writes_on(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
):
    sequence = EventSequence()
    whole = sequence.number([make_delta("one ")])
    await ResponseLog(bus, "r").append(whole)
    torn = LogContent()
    for record in await bus.read_subject(subjects.RESPONSES, subjects.response_subject("r")):
        torn.add_message(record.data, record.number)
    await bus.append_record(
        subjects.RESPONSES, subjects.response_subject("r"), b'1=\n{"type":"' + b"x" * 100, "torn", torn.number
    )

    stored_log = await read_log(bus, "r")
    assert stored_log.events == whole
    rest = sequence.number([make_delta("two")])
    await ResponseLog(bus, "r", stored_log).append(rest)

    assert (await read_log(bus, "r")).events == [*whole, *rest]


async def test_of_two_writers_one_is_refused(bus: MemoryBus):
    first = ResponseLog(bus, "r")
    await first.append(EventSequence().number([make_delta("one")]))
    second = ResponseLog(bus, "r", await read_log(bus, "r"))
    stored_events = (await read_log(bus, "r")).events

    await second.append(EventSequence.after(stored_events).number([make_delta("two")]))

    with pytest.raises(Conflict):
        await first.append(EventSequence.after(stored_events).number([make_delta("other")]))
    assert [event.number for event in (await read_log(bus, "r")).events] == [0, 1]


async def test_a_reader_gets_what_is_written_while_it_reads(bus: MemoryBus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log, "SILENCE_SECONDS", 0.02)
    writer, sequence, numbers = ResponseLog(bus, "r"), EventSequence(), []
    await writer.append(sequence.number([make_delta("one")]))

    silent = 0
    async for events in LogReader(bus, "r").follow():
        numbers += [event.number for event in events]
        silent += not events
        if silent == 1 and not events:
            await writer.append(sequence.number([make_delta("two"), {"type": "response.completed"}]))

    assert numbers == [0, 1, 2]


async def test_a_log_without_its_beginning_is_an_error(bus: MemoryBus):
    await bus.append_record(subjects.RESPONSES, subjects.response_subject("r"), b'3=\n{"type":"x"}\n', "late", 0)

    with pytest.raises(ProtocolError, match="kept no longer"):
        await read_log(bus, "r")


# Numbers


def number_events(*events: dict[str, Any]) -> list[NumberedEvent]:
    return EventSequence().number(events)


@pytest.mark.parametrize(
    "groups", [["one two ", "three four"], ["one ", "two three", " four"], list("one two three four")]
)
def test_deltas_that_are_grouped_otherwise_go_on_where_they_stopped(groups: list[str]):
    earlier_events = number_events({"type": "begin"}, make_delta("one "), make_delta("two th"))
    sequence = EventSequence(earlier_events)

    fresh = sequence.number([{"type": "begin"}, *map(make_delta, groups), {"type": "response.completed"}])

    assert [event.number for event in fresh] == list(range(3, 3 + len(fresh)))
    assert b"".join(event.body for event in fresh).count(b"one") == 0
    full_text = "".join(_delta_of(event) for event in [*earlier_events, *fresh])
    assert full_text == "one two three four"


@pytest.mark.parametrize(
    "again",
    [
        [{"type": "begin"}, make_delta("ONE")],
        [make_delta("one ")],
        [{"type": "begin"}, make_delta("o"), {"type": "end"}],
        [{"type": "begin"}, make_delta("o"), {"type": "response.completed"}],
    ],
)
def test_an_answer_that_comes_out_otherwise_is_not_continued(again: list[dict[str, Any]]):
    sequence = EventSequence(number_events({"type": "begin"}, make_delta("one ")))

    with pytest.raises(CannotContinue):
        sequence.number(again)


def test_text_and_sound_may_cross():
    audio, text = "response.audio.delta", DELTA
    one, two = (base64.b64encode(data).decode() for data in (b"abc", b"def"))
    earlier_events = number_events(make_delta("a", text), make_delta(one, audio), make_delta("b", text))
    sequence = EventSequence(earlier_events)
    other = base64.b64encode(b"abd").decode()  # a sample may differ by a step

    fresh = sequence.number([make_delta(other + two, audio), make_delta("abc", text), {"type": "response.completed"}])

    assert [(_delta_of(event), event.type) for event in fresh] == [
        (two, audio),
        ("c", text),
        ("", "response.completed"),
    ]


def _delta_of(event: NumberedEvent) -> str:
    return str(json.loads(event.body).get("delta", ""))
