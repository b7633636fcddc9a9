"""The log of a response, and the numbers of its events: torn lines, late writers, and answers that differ."""

import base64
import json
from typing import Any

import pytest

from omnibus.bus import subjects
from omnibus.bus.memory import MemoryBus
from omnibus.errors import CannotContinue, Conflict, ProtocolError
from omnibus_gateway.openai.responses.sequence import EventSequence, NumberedEvent
from omnibus_gateway.responses import log
from omnibus_gateway.responses.log import LogContent, LogReader, ResponseLog, read_log

DELTA = "response.output_text.delta"


def delta(text: str, type: str = DELTA) -> dict[str, Any]:
    return {"type": type, "delta": text}


@pytest.fixture
async def bus() -> MemoryBus:
    made = MemoryBus()
    await made.open_records(60.0, 1 << 20, subjects.RESPONSES)
    return made


async def test_long_events_are_put_together_from_their_pieces(bus: MemoryBus):
    events = EventSequence().number([delta("x" * 150_000), delta("short")])
    await ResponseLog(bus, "r").append(events, [1, 2**32 - 1])

    content = await read_log(bus, "r")

    assert content.events == events
    assert content.token_ids == [1, 2**32 - 1]
    assert content.pieces == 4


async def test_a_line_without_an_end_is_dropped_when_another_gateway_writes_on(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
):
    sequence = EventSequence()
    whole = sequence.number([delta("one ")])
    await ResponseLog(bus, "r").append(whole)
    torn = LogContent()
    for stored in await bus.read_subject(subjects.RESPONSES, subjects.response_subject("r")):
        torn.add_message(stored.data, stored.number)
    await bus.append_record(
        subjects.RESPONSES, subjects.response_subject("r"), b'1=\n{"type":"' + b"x" * 100, "torn", torn.number
    )

    known = await read_log(bus, "r")
    assert known.events == whole
    rest = sequence.number([delta("two")])
    await ResponseLog(bus, "r", known).append(rest)

    assert (await read_log(bus, "r")).events == [*whole, *rest]


async def test_of_two_writers_one_is_refused(bus: MemoryBus):
    first = ResponseLog(bus, "r")
    await first.append(EventSequence().number([delta("one")]))
    second = ResponseLog(bus, "r", await read_log(bus, "r"))
    known = (await read_log(bus, "r")).events

    await second.append(EventSequence.after(known).number([delta("two")]))

    with pytest.raises(Conflict):
        await first.append(EventSequence.after(known).number([delta("other")]))
    assert [event.number for event in (await read_log(bus, "r")).events] == [0, 1]


async def test_a_reader_gets_what_is_written_while_it_reads(bus: MemoryBus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(log, "SILENCE_SECONDS", 0.02)
    writer, sequence, seen = ResponseLog(bus, "r"), EventSequence(), []
    await writer.append(sequence.number([delta("one")]))

    silent = 0
    async for events in LogReader(bus, "r").follow():
        seen += [event.number for event in events]
        silent += not events
        if silent == 1 and not events:
            await writer.append(sequence.number([delta("two"), {"type": "response.completed"}]))

    assert seen == [0, 1, 2]


async def test_a_log_without_its_beginning_is_an_error(bus: MemoryBus):
    await bus.append_record(subjects.RESPONSES, subjects.response_subject("r"), b'3=\n{"type":"x"}\n', "late", 0)

    with pytest.raises(ProtocolError, match="kept no longer"):
        await read_log(bus, "r")


# Numbers


def numbered(*events: dict[str, Any]) -> list[NumberedEvent]:
    return EventSequence().number(events)


@pytest.mark.parametrize(
    "groups", [["one two ", "three four"], ["one ", "two three", " four"], list("one two three four")]
)
def test_deltas_that_are_grouped_otherwise_go_on_where_they_stopped(groups: list[str]):
    known = numbered({"type": "begin"}, delta("one "), delta("two th"))
    sequence = EventSequence(known)

    fresh = sequence.number([{"type": "begin"}, *map(delta, groups), {"type": "response.completed"}])

    assert [event.number for event in fresh] == list(range(3, 3 + len(fresh)))
    assert b"".join(event.body for event in fresh).count(b"one") == 0
    said = "".join(_delta_of(event) for event in [*known, *fresh])
    assert said == "one two three four"


@pytest.mark.parametrize(
    "again",
    [
        [{"type": "begin"}, delta("ONE")],
        [delta("one ")],
        [{"type": "begin"}, delta("o"), {"type": "end"}],
        [{"type": "begin"}, delta("o"), {"type": "response.completed"}],
    ],
)
def test_an_answer_that_comes_out_otherwise_is_not_continued(again: list[dict[str, Any]]):
    sequence = EventSequence(numbered({"type": "begin"}, delta("one ")))

    with pytest.raises(CannotContinue):
        sequence.number(again)


def test_text_and_sound_may_cross():
    audio, text = "response.audio.delta", DELTA
    one, two = (base64.b64encode(data).decode() for data in (b"abc", b"def"))
    known = numbered(delta("a", text), delta(one, audio), delta("b", text))
    sequence = EventSequence(known)
    other = base64.b64encode(b"abd").decode()  # a sample may differ by a step

    fresh = sequence.number([delta(other + two, audio), delta("abc", text), {"type": "response.completed"}])

    assert [(_delta_of(event), event.type) for event in fresh] == [
        (two, audio),
        ("c", text),
        ("", "response.completed"),
    ]


def _delta_of(event: NumberedEvent) -> str:
    return str(json.loads(event.body).get("delta", ""))
