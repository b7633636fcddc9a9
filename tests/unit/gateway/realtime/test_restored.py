"""Session logs are read in pieces, so they block no other work."""

import asyncio
import base64

import msgspec
import pytest

from omnibus.errors import ProtocolError
from omnibus.recording.sessions import BegunTurn, InputChange, SessionEntry, SessionOrigin
from omnibus_gateway.openai.realtime.session import SessionConfig, encode_event
from omnibus_gateway.realtime.restored import MAX_BYTES_AT_ONCE, RestoredSession

CONFIG = msgspec.Raw(encode_event(SessionConfig(model="m")))
AUDIO, DELTAS = bytes(range(256)) * 48, 200


def make_entry(*events: dict, **changes) -> SessionEntry:
    return SessionEntry(at=1.0, events=tuple(msgspec.Raw(msgspec.json.encode(each)) for each in events), **changes)


def spoken_answer() -> list[SessionEntry]:
    """Return the log of a session with one long answer in progress."""
    origin = SessionOrigin("m", 1 << 31, "conv_1", "")
    place = {"response_id": "resp_1", "output_index": 0}
    message = {"id": "item_1", "type": "message", "role": "assistant"}
    delta = {"type": "response.output_audio.delta", **place, "delta": base64.b64encode(AUDIO).decode()}
    return [
        make_entry(origin=origin, config=CONFIG),
        make_entry(
            {"type": "response.created", "response": {"id": "resp_1"}}, turn=BegunTurn("resp_1", CONFIG, (), 1, 2.0)
        ),
        make_entry(
            {"type": "response.output_item.added", **place, "item": message},
            {"type": "response.content_part.added", **place, "part": {"type": "audio"}},
        ),
        *[make_entry(delta, codes={"resp_1": (number,)}) for number in range(DELTAS)],
    ]


async def test_others_go_on_while_a_long_history_is_read():
    entries, turns = spoken_answer(), 0
    restored_session = RestoredSession(entries[0])

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    await restored_session.apply_entries(entries)
    counting.cancel()

    size = sum(len(bytes(event)) for each in entries for event in each.events)
    assert turns >= size // (2 * MAX_BYTES_AT_ONCE) > 3
    [turn] = restored_session.turns.values()
    assert turn.items[0].parts[0].audio == AUDIO * DELTAS
    assert turn.codes == list(range(DELTAS))


async def test_audio_that_was_appended_in_pieces_is_whole_behind_the_last_that_replaced_it():
    changes = [(b"aa", False), (b"bb", False), (b"cc", True), (b"dd", False)]
    entries = [
        SessionEntry(at=1.0, input=InputChange(2 * number, 1.0 * number, data, resets, speech=f"item_{number}"))
        for number, (data, resets) in enumerate(changes)
    ]
    restored_session = RestoredSession(spoken_answer()[0])
    assert restored_session.input is None

    await restored_session.apply_entries(entries)

    assert restored_session.input == InputChange(6, 3.0, b"ccdd", True, speech="item_3")


def test_a_log_without_its_beginning_cannot_be_read():
    with pytest.raises(ProtocolError, match="lost its beginning"):
        RestoredSession(spoken_answer()[1])
