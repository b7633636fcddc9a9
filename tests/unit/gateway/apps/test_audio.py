"""Apps as transcription models; they cannot be used for speech."""

import httpx

from tests.unit.gateway.api.test_transcriptions import HEARD, WAV
from tests.unit.gateway.apps.estate import Estate, Gateway
from tests.unit.gateway.house import OMNI, error

#: The toy model with audio input, in capitals.
LISTENER = """
    from omnibus.app import App
    from omnibus.task import ChatInput, ChatOutput, Encode, MLLM, Think

    app = App(model="secretary")
    TASK = MLLM(
        encoders={"audio": Encode(model="toy.omni", component="audio")},
        thinker=Think(model="toy.omni", component="thinker"),
    )


    async def serve(request: ChatInput) -> ChatOutput:
        answer = await TASK(request)
        return ChatOutput(text=answer.text.transform(lambda part: part.model_copy(update={"text": part.text.upper()})))
"""
MUTE = """
    import numpy as np

    from omnibus.app import App
    from omnibus.task import Audio, ChatInput, ChatOutput

    app = App(model="mute")


    async def serve(request: ChatInput) -> ChatOutput:
        return ChatOutput(text=None, audio=Audio(rate=24000, array=np.ones(2400, np.float32)))
"""


async def transcribe(gate: Gateway, model: str, file: bytes = WAV, **more: str) -> httpx.Response:
    fields = {"model": model, "seed": "5", **more}
    return await gate.http.post("/v1/audio/transcriptions", data=fields, files={"file": ("a.wav", file)})


async def test_an_app_writes_down_what_it_hears(land: Estate, gate: Gateway):
    await land.home.all_of(OMNI)
    land.write("listener", LISTENER)
    await gate.register("listener")

    whole = await transcribe(gate, "secretary")
    stream = await transcribe(gate, "secretary", stream="true")

    assert whole.status_code == 200, whole.text
    assert whole.json()["text"].startswith("YOU SAID TRANSCRIBE THE AUDIO")
    assert f"SAW {HEARD}" in whole.json()["text"]
    assert "transcript.text.done" in stream.text
    await land.home.emptied()


async def test_a_broken_sound_is_refused_before_the_app_hears_of_it(land: Estate, gate: Gateway):
    await land.home.all_of(OMNI)
    land.write("listener", LISTENER)
    await gate.register("listener")

    refused = await transcribe(gate, "secretary", WAV[:20])

    assert (refused.status_code, error(refused)["param"]) == (400, "file")
    await land.home.emptied()


async def test_an_app_that_writes_nothing_says_so(land: Estate, gate: Gateway):
    await land.home.all_of(OMNI)
    land.write("mute", MUTE)
    await gate.register("mute")

    refused = await transcribe(gate, "mute")

    assert refused.status_code == 400, refused.text
    assert "writes no text" in error(refused)["message"]
    await land.home.emptied()


async def test_apps_are_not_told_what_to_say(land: Estate, gate: Gateway):
    await land.home.all_of(OMNI)
    land.write("listener", LISTENER)
    await gate.register("listener")

    refused = await gate.http.post("/v1/audio/speech", json={"model": "secretary", "input": "hi", "voice": "alloy"})

    assert (refused.status_code, error(refused)["param"]) == (400, "model")
    assert "chat" in error(refused)["message"]
