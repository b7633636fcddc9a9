"""Chats in the dialect of vLLM-Omni: its clients' requests, and the answers that they read."""

import base64
import io
import json
import wave
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from PIL import Image

from omnibus.errors import OmnibusError
from omnibus.executor.runner import Job
from omnibus_gateway.openai.vllm_omni import OmniRequest, translate_request
from tests.unit.gateway.fuzz import JUNK
from tests.unit.gateway.house import OMNI, PAINTER, RATE, VL, ToyGateway, read_error_body, read_sse_events

DIALECT = {"x-omnibus-dialect": "vllm-omni"}
BOAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "a red boat"}],
    "extra_body": {"height": 48, "width": 64, "num_inference_steps": 4, "true_cfg_scale": 3.0, "seed": 7},
}
HELLO: dict[str, Any] = {"model": OMNI, "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 3}


async def send_chat(home: ToyGateway, **body: Any) -> httpx.Response:
    return await home.http.post("/v1/chat/completions", json=body, headers=DIALECT)


def read_colour(part: dict[str, Any]) -> list[int]:
    head, data = part["image_url"]["url"].split(",")
    assert (part["type"], head) == ("image_url", "data:image/png;base64")
    return [int(value) for value in np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))[0, 0]]


def read_wav(file: str) -> tuple[int, bytes]:
    """Return rate and samples of a WAV file in base64."""
    with wave.open(io.BytesIO(base64.b64decode(file))) as sound:
        return sound.getframerate(), sound.readframes(sound.getnframes())


def translate_body(body: dict[str, Any], *modalities: str) -> OmniRequest:
    return translate_request(json.dumps(body).encode(), lambda name: (name or "only", list(modalities or ("text",))))


# Images


async def test_pictures_are_the_content_and_neither_model_nor_modalities_are_named(home: ToyGateway):
    await home.all_of(PAINTER)

    response = await send_chat(home, **BOAT)

    assert response.status_code == 200, response.text
    [choice] = response.json()["choices"]
    [part] = choice["message"]["content"]
    assert read_colour(part) == [7, 3, 3]
    assert (response.json()["model"], choice["finish_reason"]) == (PAINTER, "stop")
    await home.emptied()


async def test_a_stream_marks_its_pictures(home: ToyGateway):
    await home.all_of(PAINTER)

    role, pictures, finish, end_mark = read_sse_events(await send_chat(home, **BOAT, stream=True))

    assert [each["modality"] for each in (role, pictures, finish)] == ["text", "image", "text"]
    assert [read_colour(part) for part in pictures["choices"][0]["delta"]["content"]] == [[7, 3, 3]]
    assert (finish["choices"][0]["finish_reason"], end_mark) == ("stop", "[DONE]")


async def test_the_official_client_sends_its_fields_flat(home: ToyGateway):
    await home.all_of(PAINTER)
    client = openai.AsyncOpenAI(base_url="http://gateway/v1", api_key="x", http_client=home.http, max_retries=0)

    answer: Any = await client.chat.completions.create(
        model=PAINTER, messages=BOAT["messages"], extra_body=BOAT["extra_body"], extra_headers=DIALECT
    )

    assert read_colour(answer.choices[0].message.content[0]) == [7, 3, 3]


# Audio


async def test_sound_is_a_choice_behind_the_text(home: ToyGateway):
    await home.all_of(OMNI)

    response = await send_chat(home, **HELLO)

    assert response.status_code == 200, response.text
    text_choice, audio_choice = response.json()["choices"]
    assert text_choice["message"]["content"].startswith("You said hello")
    assert (audio_choice["message"]["content"], audio_choice["finish_reason"]) == (None, "stop")
    rate, samples = read_wav(audio_choice["message"]["audio"]["data"])
    assert (rate, len(samples) > 0) == (RATE, True)
    await home.emptied()


async def test_one_modality_is_one_choice(home: ToyGateway):
    await home.all_of(OMNI)

    texts = (await send_chat(home, **HELLO, modalities=["text"])).json()["choices"]
    sounds = (await send_chat(home, **HELLO, modalities=["audio"])).json()["choices"]

    assert [each["message"].get("audio") for each in texts] == [None]
    assert [each["message"]["content"] for each in sounds] == [None]


async def test_every_chunk_of_sound_is_a_file(home: ToyGateway):
    await home.all_of(OMNI)
    whole = (await send_chat(home, **HELLO, seed=7)).json()["choices"]

    *chunks, end_mark = read_sse_events(await send_chat(home, **HELLO, seed=7, stream=True))

    contents = {kind: [each["choices"][0]["delta"].get("content") for each in chunks if each["modality"] == kind] for kind in ("text", "audio")}  # fmt: skip
    assert "".join(filter(None, contents["text"])) == whole[0]["message"]["content"]
    pieces = [read_wav(piece) for piece in contents["audio"]]
    assert {rate for rate, _ in pieces} == {RATE}
    assert b"".join(samples for _, samples in pieces) == read_wav(whole[1]["message"]["audio"]["data"])[1]
    assert end_mark == "[DONE]"
    await home.emptied()


async def test_a_talker_samples_as_it_is_told(home: ToyGateway):
    params_list: list[Any] = []

    async def record_params(job: Job) -> None:
        params_list.append(job.inputs["params"])
        job.close("codes")

    home.serve(OMNI)
    await home.executor(OMNI, "M", "vision", "audio", "thinker", "talker", "vocoder", talker=record_params)
    stages = [{"temperature": 0.0}, {"temperature": 0.5, "top_k": -1, "max_tokens": 99}]

    await home.http.post(
        "/v1/chat/completions",
        json={**HELLO, "sampling_params_list": stages},
        headers={**DIALECT, "x-omnibus-path": "M"},
    )

    [speech] = params_list
    assert (speech["temperature"], speech["top_k"], speech["top_p"], speech["max_codes"]) == (0.5, 0, 1.0, 99)
    await home.emptied()


# Requests


def test_pictures_are_asked_for_by_their_own_names():
    more = {"size": "64x48", "guidance_scale": 2.0, "negative_prompt": "fog", "num_outputs_per_prompt": 2}

    request = translate_body({**BOAT, "extra_body": more}, "image")

    assert request.image_config is not None
    config = request.image_config
    assert (config.size, config.guidance, config.negative_prompt, config.n) == ("64x48", 2.0, "fog", 2)


def test_stages_have_their_own_sampling():
    thinker = {"temperature": 0.0, "top_p": 0.5, "top_k": -1, "max_tokens": 9, "seed": 4, "detokenize": True}
    talker = {"temperature": 0.9, "top_k": 40, "max_tokens": 99, "seed": 4, "repetition_penalty": 1.05, "stop_token_ids": [8294]}  # fmt: skip
    vocoder = {"temperature": 0.0, "max_tokens": 65536, "seed": 4}

    request = translate_body({**HELLO, "max_tokens": 9, "sampling_params_list": [thinker, talker, vocoder], "speaker": "Ethan"}, "text", "audio")  # fmt: skip

    assert (request.temperature, request.top_p, request.top_k, request.token_limit, request.seed) == (
        0.0,
        0.5,
        -1,
        9,
        4,
    )
    assert request.audio is not None
    assert (request.voice_name, request.audio.format, request.audio.max_tokens) == ("Ethan", "wav", 99)
    assert (request.audio.temperature, request.audio.top_k, request.audio.repetition_penalty) == (0.9, 40, 1.05)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"extra_body": [1]}, "extra_body"),
        ({"extra_body": {"max_tokens": 4}}, "extra_body.max_tokens"),
        ({"extra_body": {"num_frames": 4}}, "num_frames"),
        ({"modalities": ["image"], "height": 48}, "size"),
        ({"modalities": ["image"], "height": 48, "width": "64"}, "size"),
        ({"modalities": ["image"], "guidance_scale": 1.0, "true_cfg_scale": 1.0}, "true_cfg_scale"),
        ({"modalities": 5}, "modalities"),
        ({"modalities": ["image"], "image_config": "large"}, "image_config"),
        ({"modalities": ["audio"], "audio": "loud"}, "audio"),
        ({"modalities": ["audio"], "audio": {"format": "mp3"}, "stream": True}, "audio.format"),
        ({"sampling_params_list": {}}, "sampling_params_list"),
        ({"sampling_params_list": [{"best_of": 2}]}, "sampling_params_list[0].best_of"),
        ({"sampling_params_list": [{"stop_token_ids": [1]}]}, "sampling_params_list[0].stop_token_ids"),
        ({"sampling_params_list": [{"detokenize": False}]}, "sampling_params_list[0].detokenize"),
        ({"sampling_params_list": [{"seed": 1}, {"seed": 2}]}, "sampling_params_list"),
        ({"sampling_params_list": [{"max_tokens": 4}]}, "sampling_params_list"),
        ({"sampling_params_list": [{"temperature": "hot"}]}, "temperature"),
        ({"mm_processor_kwargs": {"use_audio_in_video": True}}, "mm_processor_kwargs"),
        ({"messages": []}, "messages"),
        ({"speaker": "Ethan"}, "speaker"),
    ],
)
def test_what_would_not_be_obeyed_is_refused_by_name(changes: dict[str, Any], param: str):
    with pytest.raises(OmnibusError) as rejection:
        translate_body({**HELLO, **changes})

    assert rejection.value.param == param
    assert rejection.value.status == 400


async def test_a_model_has_to_be_named_where_there_are_several(home: ToyGateway):
    home.serve(PAINTER, VL)

    response = await send_chat(home, **BOAT)

    assert (response.status_code, read_error_body(response)["param"]) == (400, "model")


async def test_another_dialect_is_refused(home: ToyGateway):
    home.serve(VL)

    response = await home.http.post("/v1/chat/completions", json=HELLO, headers={"x-omnibus-dialect": "klingon"})

    assert (response.status_code, read_error_body(response)["param"]) == (400, "x-omnibus-dialect")


async def test_what_is_not_there_is_not_found(home: ToyGateway):
    home.serve(VL)

    assert (await send_chat(home, model="nobody", messages=HELLO["messages"])).status_code == 404


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(JUNK, JUNK, JUNK)
def test_whatever_is_sent_is_translated_or_refused(first: Any, second: Any, third: Any):
    names = ("extra_body", "sampling_params_list", "image_config", "audio", "size", "height", "speaker", "modalities")
    for name in names:
        body = {
            **HELLO,
            "modalities": ["image", "audio", "text"],
            name: first,
            "num_inference_steps": second,
            "seed": third,
        }
        for document in (
            body,
            {**HELLO, "modalities": ["audio"], "sampling_params_list": [first, second], name: third},
            first,
        ):
            try:
                translate_body(document, "text", "audio")
            except OmnibusError as error:
                assert error.status < 500  # noqa: PT017
