"""The timeline of a session as ``omnibus show`` prints it."""

from pathlib import Path

import numpy as np

from omnibus.cli.sessions import session_lines
from omnibus.recording.sessions import build_timeline, read_session
from tests.unit.gateway.house import OMNI, start_toy_gateway
from tests.unit.gateway.realtime.test_resumed import PausingSpeaker, send_audio, until_said
from tests.unit.gateway.realtime_house import open_realtime_call
from tests.unit.gateway.responses_house import ResponsesPair

SPEECH = (np.random.default_rng(0).standard_normal(24000) * 8000).astype("<i2").tobytes()


async def test_turns_interruptions_and_what_was_heard_are_in_it(tmp_path: Path):
    speaker = PausingSpeaker(4)
    async with start_toy_gateway(tmp_path, realtime_resume="always") as home:
        await ResponsesPair(home, home).serve(OMNI, thinker=speaker)
        async with open_realtime_call(home) as caller:
            id = caller.events[0]["session"]["id"]
            await send_audio(caller, SPEECH + bytes(48000), 0, 96000)
            await caller.until("response.created")
            await until_said(caller, 4)
            await send_audio(caller, SPEECH, 0, 48000)  # the user interrupts
            cut = (await caller.until("response.done"))[-1]["response"]
            place = {"item_id": cut["output"][0]["id"], "content_index": 0, "audio_end_ms": 11}
            await caller.ask("conversation.item.truncate", "conversation.item.truncated", **place)
            speaker.go.set()
            await send_audio(caller, bytes(48000), 0, 48000)
            response = (await caller.until("response.done"))[-1]["response"]
            await caller.refused("conversation.item.delete", item_id="nobody")
        await home.emptied()
        timeline = build_timeline(id, (await read_session(home.bus, id)).entries)
        invocations = [await home.records.find(each.invocations[0]) for each in timeline.responses]

    first, second = timeline.responses
    assert [len(turn.speech) for turn in timeline.turns] == [2, 2]
    assert (first.id, first.status, first.reason, first.truncated_ms) == (cut["id"], "cancelled", "turn_detected", 11)
    assert (second.id, second.status, second.reason) == (response["id"], "completed", None)
    assert second.audio_seconds > first.audio_seconds > 0
    assert first.waited is not None
    assert 0 < first.waited < (first.ended or 0.0) - (timeline.turns[0].committed or 0.0)
    assert [each.invocation.model for each in invocations] == [OMNI, OMNI]
    assert (timeline.model, timeline.over, timeline.errors) == (OMNI, "closed", 1)
    assert 3 * 48000 < timeline.audio_in_bytes <= 4 * 48000  # the end of the silence may belong to a turn
    times = [at for at, _ in timeline.moments]
    assert times == sorted(times)
    lines = "\n".join(session_lines(timeline))
    unknown = "error item_delete_invalid_item_id"
    for text in ("interrupted 1", "heard 11 ms", "cancelled", "turn 2 committed", "over: closed", unknown):
        assert text in lines
