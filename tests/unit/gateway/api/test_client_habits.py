"""Details that clients of other servers rely on."""

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from omnibus.families import catalog
from tests.unit.gateway.auth.test_middleware import start_gated_gateway
from tests.unit.gateway.house import (
    OMNI,
    PAINTER,
    TEXT,
    VL,
    ToyGateway,
    build_chat_body,
    make_text_part,
    read_chat_answer,
    read_error_body,
    read_sse_events,
)
from tests.unit.gateway.http.test_exchange import ExchangeClient, ExchangeSpeaker
from tests.unit.gateway.samples import make_sample_sound


async def test_streamed_speech_with_text_has_its_transcript_too(home: ToyGateway):
    await home.all_of(OMNI)
    speech_options: dict[str, Any] = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}

    frames = read_sse_events(await home.ask(OMNI, "hello", stream=True, seed=5, **speech_options))

    deltas = [ChatCompletionChunk.model_validate(frame).choices[0].delta for frame in frames[:-1]]
    text = "".join(delta.content or "" for delta in deltas)
    spoken_text = "".join(delta.audio.transcript or "" for delta in deltas if delta.audio is not None)
    assert text.startswith("You said hello")
    assert spoken_text == text


async def test_a_client_that_leaves_ends_its_request_as_client_closed(home: ToyGateway):
    speaker, client = ExchangeSpeaker(), ExchangeClient(build_chat_body(VL, "hi"), calls_back=True)
    home.serve(VL)
    await home.executor(VL, "EL", "vision", "thinker", thinker=speaker)
    serving = asyncio.ensure_future(home.app(client.scope, client.receive, client.send))
    await asyncio.wait_for(speaker.spoke.wait(), 20)

    client.leave()

    await asyncio.wait_for(serving, 20)
    await home.emptied()
    ends = [json.loads(record.data) for record in await home.bus.read_records("omnibus.inv.>")]
    [end] = [record for record in ends if record.get("kind") == "end"]
    assert (end["status"], end["problem"]["code"]) == ("cancelled", "client_closed")


@pytest.mark.parametrize("prefix", ["", "data:audio/wav;base64,"], ids=["base64", "data URL"])
async def test_sound_may_come_as_a_data_url(home: ToyGateway, prefix: str):
    await home.all_of(OMNI)
    data = prefix + base64.b64encode(make_sample_sound("wav", "pcm_s16le", 0.1)).decode()

    response = await home.ask(
        OMNI, [make_text_part("hi"), {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}]
    )

    assert "saw" in read_chat_answer(response)


async def test_models_say_what_they_take_and_make(home: ToyGateway):
    home.serve(VL, OMNI, PAINTER, **{"vectors": catalog.embedding_declaration("qwen2", "")})

    models = {each["id"]: each for each in (await home.http.get("/v1/models")).json()["data"]}

    kinds = {name: (each["input_modalities"], each["output_modalities"]) for name, each in models.items()}
    assert kinds == {
        VL: (["text", "image", "video"], ["text"]),
        OMNI: (["text", "image", "audio", "video"], ["text", "audio"]),
        PAINTER: (["text"], ["image"]),
        "vectors": (["text"], ["embedding"]),
    }
    assert "Chelsie" in models[OMNI]["voices"]
    assert models[VL]["context_length"] is None  # there is no checkpoint to say it
    assert (await home.http.get(f"/v1/models/{OMNI}")).json() == models[OMNI]


async def test_models_tell_the_context_that_is_declared_or_their_checkpoints(home: ToyGateway, tmp_path: Path):
    (tmp_path / "config.json").write_text('{"thinker_config": {"text_config": {"max_position_embeddings": 777}}}')
    home.serve(
        declared=catalog.model_declaration("qwen2", "") | {"context": 512},
        own=catalog.model_declaration("qwen2", str(tmp_path)),
    )

    models = {each["id"]: each for each in (await home.http.get("/v1/models")).json()["data"]}

    assert {name: each["max_model_len"] for name, each in models.items()} == {"declared": 512, "own": 777}
    assert {name: each["context_length"] for name, each in models.items()} == {"declared": 512, "own": 777}


async def test_a_key_with_a_rate_is_told_what_is_left_of_it(tmp_path: Path):
    async with start_gated_gateway(tmp_path, a={"rate": 0.01, "burst": 2}) as gate:
        await gate.home.all_of(TEXT)
        first, second, third = [await gate.ask("a") for _ in range(3)]
        unlimited_response = await gate.ask("b")

    left = [each.headers["x-ratelimit-remaining-requests"] for each in (first, second, third)]
    assert (first.status_code, third.status_code, left) == (200, 429, ["1", "0", "0"])
    assert third.headers["x-ratelimit-limit-requests"] == "2"
    assert float(third.headers["x-ratelimit-reset-requests"].removesuffix("s")) > 100
    assert "x-ratelimit-limit-requests" not in unlimited_response.headers


async def test_an_unknown_route_says_which_there_are(home: ToyGateway):
    for method in ("GET", "POST"):
        rejection = await home.http.request(method, "/v1/moderations")

        assert rejection.status_code == 404
        message = read_error_body(rejection)["message"]
        assert message.startswith("/v1/moderations is not served here.")
        assert all(route in message for route in ("chat/completions", "images/generations", "models", "embeddings"))


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/v1/moderations", "classifies content"),
        ("/v1/chat/completions/chatcmpl-1", "use /v1/responses"),
        ("/v1/threads/x/runs", "/v1/responses"),
        ("/v1/fine_tuning/jobs", "adapters"),
    ],
)
async def test_a_route_that_is_not_served_has_a_reason(home: ToyGateway, path: str, reason: str):
    assert reason in read_error_body(await home.http.post(path, json={}))["message"]


async def test_a_base_url_without_its_version_is_said(home: ToyGateway):
    response = await home.http.post("/chat/completions", json={})

    assert response.status_code == 404
    assert read_error_body(response)["message"] == (
        "/chat/completions is not served here, /v1/chat/completions is: clients' base URL ends in /v1."
    )


@pytest.mark.parametrize(
    ("changes", "param", "values"),
    [
        ({"modalities": ["film"]}, "modalities[0]", "audio, image, text"),
        ({"audio": {"voice": "alloy", "format": "ogg"}}, "audio.format", "aac, flac, mp3, opus, pcm16, wav"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role", "system, developer, user, assistant"),
        ({"messages": [{"role": "user", "content": [{"type": "pdf"}]}]}, "messages[0].content[0].type", "image_url"),
    ],
)
async def test_a_wrong_choice_lists_the_values_that_there_are(
    home: ToyGateway, changes: dict[str, Any], param: str, values: str
):
    home.serve(TEXT)

    details = read_error_body(await home.http.post("/v1/chat/completions", json=build_chat_body(TEXT, "hi") | changes))

    assert (details["param"], details["code"]) == (param, "bad_request")
    assert values in details["message"]


async def test_a_role_that_is_not_supported_is_said_to_be_that(home: ToyGateway):
    home.serve(TEXT)
    messages = [{"role": "function", "name": "f", "content": "1"}]

    details = read_error_body(await home.http.post("/v1/chat/completions", json={"model": TEXT, "messages": messages}))

    assert details["param"] == "messages[0].role"
    assert details["message"].startswith("Messages of role 'function' are not supported")


@pytest.mark.parametrize("quality", ["auto", "standard", "medium"])
async def test_qualities_that_mean_the_usual_one_are_taken(home: ToyGateway, quality: str):
    await home.all_of(PAINTER)
    client = openai.AsyncOpenAI(api_key="none", base_url="http://localhost/v1", http_client=home.http)

    generation = await client.images.generate(
        model=PAINTER, prompt="a", size="64x64", quality=quality, background="auto", extra_body={"steps": 2}
    )

    assert generation.data is not None
    assert len(generation.data) == 1


@pytest.mark.parametrize(
    ("param", "value", "instead"), [("quality", "hd", "standard"), ("background", "transparent", "opaque or auto")]
)
async def test_what_images_cannot_be_is_refused_with_what_they_can(
    home: ToyGateway, param: str, value: str, instead: str
):
    home.serve(PAINTER)

    wish = {"model": PAINTER, "prompt": "a", param: value}
    details = read_error_body(await home.http.post("/v1/images/generations", json=wish))

    assert details["param"] == param
    assert instead in details["message"]
