"""Voice sessions with apps as models: they listen, answer, speak and remember."""

import numpy as np

from tests.unit.gateway.apps.estate import AppCluster, AppGateway
from tests.unit.gateway.apps.test_audio import LISTENER
from tests.unit.gateway.house import OMNI
from tests.unit.gateway.realtime_house import SOUND, RealtimeCaller, connect_caller, join_deltas, sound_of
from tests.unit.gateway.wires import open_doorway

#: Returns its number of messages, and 0.1 s of audio.
SPEAKER = """
    import numpy as np

    from omnibus.app import App
    from omnibus.task import Audio, ChatInput, ChatOutput

    app = App(model="speaker")


    async def serve(request: ChatInput) -> ChatOutput:
        sound = Audio(rate=24000, array=np.full(2400, 0.5, np.float32))
        return ChatOutput(text=f"{len(request.messages)} messages", audio=sound)
"""


async def test_an_app_hears_what_is_said_to_it(cluster: AppCluster, gate: AppGateway):
    await cluster.home.all_of(OMNI)
    cluster.write("listener", LISTENER)
    await gate.register("listener")
    cluster.home.app = gate.app

    async with open_doorway(cluster.home) as door, connect_caller(f"ws://localhost:{door.port}", "secretary") as caller:
        await caller.update(output_modalities=["text"], audio={"input": {"turn_detection": None}})
        await caller.speak(SOUND)
        events = await caller.respond()

    text = join_deltas(events, "response.output_text.delta")
    assert events[-1]["response"]["status"] == "completed", events[-1]
    assert "SAW" in text
    await cluster.home.emptied()


async def test_an_app_speaks_and_has_the_whole_conversation(cluster: AppCluster, gate: AppGateway):
    cluster.home.serve(OMNI)
    cluster.write("speaker", SPEAKER)
    await gate.register("speaker")
    cluster.home.app = gate.app

    async with open_doorway(cluster.home) as door, connect_caller(f"ws://localhost:{door.port}", "speaker") as caller:
        first = await _take_turn(caller, "one")
        second = await _take_turn(caller, "two")

    assert [first[0], second[0]] == ["1 messages", "3 messages"]
    for _, sound in (first, second):
        assert np.all(np.abs(np.frombuffer(sound, "<i2") - 0.5 * 32767) <= 1)
        assert len(sound) == 2 * 2400


async def _take_turn(caller: RealtimeCaller, text: str) -> tuple[str, bytes]:
    await caller.say(text)
    events = await caller.respond()
    assert events[-1]["response"]["status"] == "completed", events[-1]
    return join_deltas(events, "response.output_audio_transcript.delta"), sound_of(events)
