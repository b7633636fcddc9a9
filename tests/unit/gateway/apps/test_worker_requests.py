"""Chat requests to an app itself: ``POST /v1/apps/{name}/invoke`` with a ``ChatInput``."""

import base64
import io
import wave
from typing import Any

import pytest

from tests.unit.gateway.apps.estate import LOUD, AppCluster, AppGateway, read_stream_parts
from tests.unit.gateway.house import (
    OMNI,
    VL,
    make_image_part,
    make_text_part,
    read_chat_answer,
    read_error_body,
    read_sse_events,
)

#: The toy model's words, one by one.
TELL = """
    from collections.abc import AsyncIterator

    from omnibus.task import ChatInput, Encode, MLLM, Think

    ENCODE = Encode(model="toy-vl", component="vision")
    TASK = MLLM(encoders={"image": ENCODE}, thinker=Think(model="toy-vl", component="thinker"))


    async def serve(request: ChatInput) -> AsyncIterator[str]:
        async for chunk in (await TASK(request)).text:
            yield chunk.text
"""

#: The speaking toy; {changed} is applied to its audio.
SPEAK = """
    from omnibus.task import ChatInput, ChatOutput, Encode, Omni, Talk, Think, Vocode

    M = "toy.omni"
    TASK = Omni(
        encoders={},
        thinker=Think(model=M, component="thinker"),
        talker=Talk(model=M, component="talker"),
        vocoder=Vocode(model=M, component="vocoder"),
    )


    async def serve(request: ChatInput) -> ChatOutput:
        answer = await TASK(request)
        return ChatOutput(text=answer.text, audio=answer.audio{changed})
"""

QUESTION = [make_text_part("look at"), make_image_part()]


def make_request(content: Any = QUESTION, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "seed": 3, **more}


async def test_an_app_is_asked_like_a_model_and_answers_with_text(cluster: AppCluster, gate: AppGateway):
    await cluster.home.all_of(VL)
    cluster.write("loud", LOUD, model="poet")
    await gate.register("loud")
    model = await gate.http.post("/v1/chat/completions", json={"model": "poet", **make_request()})

    app_answer = await gate.invoke("loud", make_request())

    assert app_answer == {"text": read_chat_answer(model), "audio": None}
    assert app_answer["text"].startswith("YOU SAID LOOK AT SAW ")
    await cluster.home.emptied()


async def test_parts_leave_as_events_and_the_request_is_recorded_with_its_seed(cluster: AppCluster, gate: AppGateway):
    await cluster.home.all_of(VL)
    cluster.write("tell", TELL)
    await gate.register("tell")

    response = await gate.http.post("/v1/apps/tell/invoke", json=make_request(max_tokens=3, stream=True))

    assert read_stream_parts(response) == ["You ", "said ", "look ", "", "[DONE]"]
    invocation, _ = await cluster.home.records.find(response.headers["x-request-id"])
    assert (invocation.app, invocation.seed, len(invocation.nodes)) == ("tell", 3, 2)
    await cluster.home.emptied()


@pytest.mark.parametrize("expression", ["", ".transform(lambda part: part)"], ids=["as it is", "transformed"])
async def test_a_sound_is_a_wav_file(cluster: AppCluster, gate: AppGateway, expression: str):
    await cluster.home.all_of(OMNI)
    cluster.write("speak", SPEAK, changed=expression)
    await gate.register("speak")
    speech_options = {"modalities": ["text", "audio"], "audio": {"voice": "Chelsie", "format": "wav"}, "temperature": 0}

    app_answer = await gate.invoke("speak", make_request("hello", **speech_options))

    assert app_answer["text"].startswith("You said hello")
    assert app_answer["audio"]["format"] == "wav"
    with wave.open(io.BytesIO(base64.b64decode(app_answer["audio"]["data"]))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24000, 1, 2)
        assert file.getnframes() == 240 * len(app_answer["text"].split())


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (make_request(max_tokens=0), "max_tokens"),
        (make_request(surprise=1), "surprise"),
        (make_request(model="gpt"), "model"),
        (make_request(stream=False), "stream"),
        (make_request(modalities=["audio"], audio={"voice": "a", "format": "mp3"}), "audio.format"),
        (make_request([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]), None),
    ],
    ids=str,
)
async def test_what_is_no_chat_request_is_refused_by_its_parameter(
    cluster: AppCluster, gate: AppGateway, body: dict[str, Any], param: str | None
):
    await cluster.home.all_of(VL)
    cluster.write("tell", TELL)
    await gate.register("tell")

    response = await gate.http.post("/v1/apps/tell/invoke", json=body)

    assert response.status_code == 400
    assert param is None or read_error_body(response)["param"] == param
    await cluster.home.emptied()


@pytest.mark.parametrize("model", ["tell", ""])
async def test_its_own_name_may_stand_as_the_model(cluster: AppCluster, gate: AppGateway, model: str):
    await cluster.home.all_of(VL)
    cluster.write("tell", TELL)
    await gate.register("tell")

    response = await gate.http.post("/v1/apps/tell/invoke", json=make_request(model=model))

    assert response.status_code == 200


async def test_handles_of_ones_own_are_no_chat_request(cluster: AppCluster, gate: AppGateway):
    await cluster.home.all_of(VL)
    cluster.write("tell", TELL)
    await gate.register("tell")
    raw = {"messages": [{"role": "user", "content": "hi"}], "media": [{"$handle": {"id": 1}, "modality": "image"}]}

    response = await gate.http.post("/v1/apps/tell/invoke", json=raw)

    assert (response.status_code, read_error_body(response)["param"]) == (400, "media")


async def test_what_it_takes_is_told(cluster: AppCluster, gate: AppGateway):
    cluster.write("tell", TELL)
    await cluster.home.all_of(VL)

    view = await gate.register("tell")
    schemas = (await gate.http.get("/openapi.json")).json()["components"]["schemas"]

    assert view["chat"] is True
    assert view["request"]["$ref"].rpartition("/")[2] in schemas


#: Speaks even if not requested.
LOUDMOUTH = """
    import numpy as np

    from omnibus.app import App
    from omnibus.task import Audio, ChatInput, ChatOutput

    app = App(model="loudmouth")


    async def sound():
        for _ in range(100):
            yield Audio(array=np.zeros(24000, np.float32))


    async def serve(request: ChatInput) -> ChatOutput:
        return ChatOutput(text="hi", audio=sound())
"""


async def test_sound_that_no_client_asked_for_is_not_sent_and_costs_the_app_nothing(
    cluster: AppCluster, gate: AppGateway
):
    await cluster.home.all_of(VL)
    cluster.write("loudmouth", LOUDMOUTH)
    await gate.register("loudmouth")
    before = gate.apps.registry.worker("loudmouth")[1].pid

    for stream in (False, True, False):
        response = await gate.http.post(
            "/v1/chat/completions", json={"model": "loudmouth", **make_request(stream=stream)}
        )

        assert response.status_code == 200
        assert "hi" in response.text
        assert '"audio":' not in response.text

    assert gate.apps.registry.worker("loudmouth")[1].pid == before
    await cluster.home.emptied()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["", "vllm-omni"])
async def test_an_answer_names_the_app_as_its_client_does(
    cluster: AppCluster, gate: AppGateway, stream: bool, dialect: str
):
    await cluster.home.all_of(VL)
    cluster.write("loud", LOUD, model="poet")
    await gate.register("loud")
    headers = {"x-omnibus-dialect": dialect} if dialect else {}

    response = await gate.http.post(
        "/v1/chat/completions", json={"model": "poet", **make_request(stream=stream)}, headers=headers
    )

    answers = [each for each in read_sse_events(response) if each != "[DONE]"] if stream else [response.json()]
    assert {each["model"] for each in answers} == {"poet"}
    await cluster.home.emptied()


async def test_sound_that_an_app_does_not_give_is_refused(cluster: AppCluster, gate: AppGateway):
    await cluster.home.all_of(VL)
    cluster.write("loud", LOUD, model="poet")
    await gate.register("loud")
    speech_options = {"modalities": ["text", "audio"], "audio": {"voice": "a", "format": "wav"}}

    response = await gate.http.post("/v1/chat/completions", json={"model": "poet", **make_request(**speech_options)})

    assert (response.status_code, read_error_body(response)["param"]) == (400, "modalities")
    await cluster.home.emptied()
