"""The timeline of a session as ``omnibus show`` prints it."""

from pathlib import Path

import numpy as np

from omnibus.cli.sessions import session_lines
from omnibus.recording.session_timeline import build_timeline
from omnibus.recording.sessions import read_session
from tests.unit.gateway.house import OMNI, house
from tests.unit.gateway.realtime.test_resumed import Speaker, append, until_said
from tests.unit.gateway.realtime_house import calls
from tests.unit.gateway.responses_house import Pair

SPEECH = (np.random.default_rng(0).standard_normal(24000) * 8000).astype("<i2").tobytes()


async def test_turns_interruptions_and_what_was_heard_are_in_it(tmp_path: Path):
    speaker = Speaker(4)
    async with house(tmp_path, realtime_resume="always") as home:
        await Pair(home, home).serve(OMNI, thinker=speaker)
        async with calls(home) as caller:
            id = caller.events[0]["session"]["id"]
            await append(caller, SPEECH + bytes(48000), 0, 96000)
            await caller.until("response.created")
            await until_said(caller, 4)
            await append(caller, SPEECH, 0, 48000)  # the user interrupts
            cut = (await caller.until("response.done"))[-1]["response"]
            place = {"item_id": cut["output"][0]["id"], "content_index": 0, "audio_end_ms": 11}
            await caller.ask("conversation.item.truncate", "conversation.item.truncated", **place)
            speaker.go.set()
            await append(caller, bytes(48000), 0, 48000)
            done = (await caller.until("response.done"))[-1]["response"]
            await caller.refused("conversation.item.delete", item_id="nobody")
        await home.emptied()
        found = build_timeline(id, (await read_session(home.bus, id)).entries)
        invocations = [await home.records.find(each.invocations[0]) for each in found.responses]

    first, second = found.responses
    assert [len(turn.speech) for turn in found.turns] == [2, 2]
    assert (first.id, first.status, first.reason, first.truncated_ms) == (cut["id"], "cancelled", "turn_detected", 11)
    assert (second.id, second.status, second.reason) == (done["id"], "completed", None)
    assert second.audio_seconds > first.audio_seconds > 0
    assert first.waited is not None
    assert 0 < first.waited < (first.ended or 0.0) - (found.turns[0].committed or 0.0)
    assert [each.invocation.model for each in invocations] == [OMNI, OMNI]
    assert (found.model, found.over, found.errors) == (OMNI, "closed", 1)
    assert 3 * 48000 < found.audio_in_bytes <= 4 * 48000  # the end of the silence may belong to a turn
    times = [at for at, _ in found.moments]
    assert times == sorted(times)
    lines = "\n".join(session_lines(found))
    unknown = "error item_delete_invalid_item_id"
    for said in ("interrupted 1", "heard 11 ms", "cancelled", "turn 2 committed", "over: closed", unknown):
        assert said in lines
