"""Ids of events: the amount of an answer already sent, however it is cut into events."""

from typing import Any

import pytest

from omnibus.errors import BadRequest, CannotContinue
from omnibus_gateway.openai.chat_response import ChatStream
from omnibus_gateway.request.continuing import NumberedStream, parse_event_id
from tests.unit.gateway.event_streams import StreamedEvent, parse_events, sound_of, text_of


def test_events_may_be_cut_otherwise_the_second_time():
    data, letters = bytes(range(97)), "äöü and a long text"

    def make_events(after: Any, cuts: tuple[int, int]) -> list[StreamedEvent]:
        stream = NumberedStream(ChatStream("i", "m", 1), "t", "pcm16", after)
        events = [stream.role()]
        for start in range(0, len(letters), cuts[0]):
            events.append(stream.text(letters[start : start + cuts[0]]))
        for start in range(0, len(data), cuts[1]):
            events.append(stream.audio(data[start : start + cuts[1]]))
        events.append(stream.audio_end(9))
        stream.complete()
        events.append(stream.finish("stop"))
        return parse_events(b"".join(events).decode())

    first = make_events(None, (3, 7))
    for cuts in ((1, 1), (5, 13), (100, 100)):
        for place, event in enumerate(first):
            if event.id:
                rest = make_events(parse_event_id(event.id)[1], cuts)
                assert text_of(first[: place + 1]) + text_of(rest) == letters
                assert sound_of(first[: place + 1]) + sound_of(rest) == data


def test_sound_of_a_codec_that_differs_is_no_continuation():
    stream = NumberedStream(ChatStream("i", "m", 1), "t", "mp3", None)
    last = parse_events((stream.audio(b"x" * 12) + stream.audio(b"y" * 12)).decode())[-1].id

    again = NumberedStream(ChatStream("i", "m", 1), "t", "mp3", parse_event_id(last)[1])

    with pytest.raises(CannotContinue):
        again.audio(b"z" * 30)


@pytest.mark.parametrize(
    "last",
    [
        "x", "a.b.c", "t.1.00000000.0.00000000", f"{'t' * 65}.0.00000000.0.00000000.0", "ö",
        "t.012.00000000.0.00000000.0", "t.12.00000000.0.00000000.00",
    ],
)  # fmt: skip
def test_what_is_no_event_id_is_refused(last: str):
    with pytest.raises(BadRequest):
        parse_event_id(last)
