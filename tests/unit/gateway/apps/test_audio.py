"""Apps as transcription models; they cannot be used for speech."""

import httpx

from tests.unit.gateway.api.test_transcriptions import HEARD, WAV
from tests.unit.gateway.apps.estate import AppCluster, AppGateway
from tests.unit.gateway.house import OMNI, read_error_body

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


async def post_transcription(gate: AppGateway, model: str, file: bytes = WAV, **more: str) -> httpx.Response:
    fields = {"model": model, "seed": "5", **more}
    return await gate.http.post("/v1/audio/transcriptions", data=fields, files={"file": ("a.wav", file)})


async def test_an_app_writes_down_what_it_hears(cluster: AppCluster, gate: AppGateway):
    await cluster.home.all_of(OMNI)
    cluster.write("listener", LISTENER)
    await gate.register("listener")

    whole = await post_transcription(gate, "secretary")
    stream = await post_transcription(gate, "secretary", stream="true")

    assert whole.status_code == 200, whole.text
    assert whole.json()["text"].startswith("YOU SAID TRANSCRIBE THE AUDIO")
    assert f"SAW {HEARD}" in whole.json()["text"]
    assert "transcript.text.done" in stream.text
    await cluster.home.emptied()


async def test_a_broken_sound_is_refused_before_the_app_hears_of_it(cluster: AppCluster, gate: AppGateway):
    await cluster.home.all_of(OMNI)
    cluster.write("listener", LISTENER)
    await gate.register("listener")

    rejection = await post_transcription(gate, "secretary", WAV[:20])

    assert (rejection.status_code, read_error_body(rejection)["param"]) == (400, "file")
    await cluster.home.emptied()


async def test_an_app_that_writes_nothing_says_so(cluster: AppCluster, gate: AppGateway):
    await cluster.home.all_of(OMNI)
    cluster.write("mute", MUTE)
    await gate.register("mute")

    rejection = await post_transcription(gate, "mute")

    assert rejection.status_code == 400, rejection.text
    assert "writes no text" in read_error_body(rejection)["message"]
    await cluster.home.emptied()


async def test_apps_are_not_told_what_to_say(cluster: AppCluster, gate: AppGateway):
    await cluster.home.all_of(OMNI)
    cluster.write("listener", LISTENER)
    await gate.register("listener")

    rejection = await gate.http.post("/v1/audio/speech", json={"model": "secretary", "input": "hi", "voice": "alloy"})

    assert (rejection.status_code, read_error_body(rejection)["param"]) == (400, "model")
    assert "chat" in read_error_body(rejection)["message"]
