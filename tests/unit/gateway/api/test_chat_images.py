"""Chats that request images, with executors that paint one colour."""

import base64
import io
import json
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from PIL import Image

from tests.unit.gateway.house import (
    OMNI,
    PAINTER,
    VL,
    ToyGateway,
    make_image_part,
    make_text_part,
    read_error_body,
    read_sse_events,
)

CONFIG = {"size": "64x48", "steps": 4, "guidance": 3}
WISH: dict[str, Any] = {
    "model": PAINTER,
    "messages": [{"role": "user", "content": "a red boat"}],
    "modalities": ["image", "text"],
    "image_config": CONFIG,
    "seed": 7,
}

SAID = {"role": "user", "content": "x"}


@pytest.fixture
async def image_gateway(home: ToyGateway) -> ToyGateway:
    await home.all_of(PAINTER)
    return home


async def send_chat(home: ToyGateway, **more: Any) -> httpx.Response:
    return await home.http.post("/v1/chat/completions", json={**WISH, **more})


def read_colour(picture: dict[str, Any]) -> list[int]:
    head, data = picture["image_url"]["url"].split(",")
    assert head == "data:image/png;base64"
    return [int(value) for value in np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))[0, 0]]


async def test_the_answer_has_pictures_beside_its_content(image_gateway: ToyGateway):
    response = await send_chat(image_gateway)

    assert response.status_code == 200, response.text
    body = response.json()
    message = body["choices"][0]["message"]
    assert (message["content"], body["choices"][0]["finish_reason"]) == ("", "stop")
    [picture] = message["images"]
    assert (picture["type"], picture["index"], read_colour(picture)) == ("image_url", 0, [7, 3, 3])
    assert body["usage"]["prompt_tokens"] == 3
    assert body["usage"]["completion_tokens_details"]["image_tokens"] == body["usage"]["completion_tokens"] == 12
    assert response.headers["x-omnibus-path"] in ("T>D>V", "TDV")
    await image_gateway.emptied()


async def test_without_text_there_is_no_content(image_gateway: ToyGateway):
    body = (await send_chat(image_gateway, modalities=["image"])).json()

    assert body["choices"][0]["message"]["content"] is None


async def test_several_pictures_and_urls_can_be_wanted(image_gateway: ToyGateway):
    body = (await send_chat(image_gateway, image_config={**CONFIG, "n": 2, "response_format": "url"})).json()

    urls = [picture["image_url"]["url"] for picture in body["choices"][0]["message"]["images"]]
    files = [(await image_gateway.http.get(url)).content for url in urls]
    assert [int(np.asarray(Image.open(io.BytesIO(file)))[0, 0, 0]) for file in files] == [7, 8]


async def test_a_stream_brings_them_at_once(image_gateway: ToyGateway):
    response = await send_chat(image_gateway, stream=True, stream_options={"include_usage": True})

    role, pictures, finish, usage, end_mark = read_sse_events(response)
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert read_colour(pictures["choices"][0]["delta"]["images"][0]) == [7, 3, 3]
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert usage["usage"]["completion_tokens"] == 12
    assert end_mark == "[DONE]"
    await image_gateway.emptied()


async def test_the_prompt_is_all_text_of_the_message(image_gateway: ToyGateway):
    content = [make_text_part("a boat"), make_text_part("on a lake")]

    body = (await send_chat(image_gateway, messages=[{"role": "user", "content": content}])).json()

    assert read_colour(body["choices"][0]["message"]["images"][0])[1] == 5


async def test_the_prompt_is_what_all_but_the_model_said(image_gateway: ToyGateway):
    first = (await send_chat(image_gateway, modalities=["image"])).json()["choices"][0]["message"]
    conversation = [
        {"role": "system", "content": "paint in oil"},
        *WISH["messages"],
        first,
        {"role": "user", "content": "bluer"},
    ]

    body = (await send_chat(image_gateway, messages=conversation)).json()

    assert read_colour(body["choices"][0]["message"]["images"][0]) == [7, 7, 3]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": VL}, "model"),
        ({"modalities": ["image", "audio"], "audio": {"voice": "alloy", "format": "wav"}}, "modalities"),
        ({"modalities": ["text"]}, "image_config"),
        ({"modalities": ["image", "smell"]}, "modalities[1]"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages[0].content"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [SAID, {"role": "assistant", "content": "a boat?"}, SAID]}, "messages[1]"),
        ({"messages": [SAID, {"role": "assistant", "audio": {"id": "audio_1"}}]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": [make_text_part("x"), make_image_part()]}]}, "messages"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [make_text_part("x"), {"type": "audio_url", "audio_url": {"url": "data:,"}}],
                    }
                ]
            },
            "messages[0].content[1].audio_url.url",
        ),
        ({"image_config": {"size": "60x48"}}, "image_config.size"),
        ({"image_config": {"size": "large"}}, "image_config.size"),
        ({"image_config": {"output_compression": 5}}, "image_config.output_compression"),
        ({"image_config": {"aspect_ratio": "1:1"}}, "image_config.aspect_ratio"),
    ],
)
async def test_what_cannot_be_painted_is_refused_by_name(
    image_gateway: ToyGateway, changes: dict[str, Any], param: str
):
    image_gateway.serve(PAINTER, VL)

    response = await send_chat(image_gateway, **changes)

    assert response.status_code == 400, response.text
    assert read_error_body(response)["param"] == param
    await image_gateway.emptied()


async def test_a_model_that_makes_pictures_is_still_no_chat_model(image_gateway: ToyGateway):
    response = await send_chat(image_gateway, modalities=None, image_config=None)

    assert response.status_code == 400
    assert "not a chat model" in read_error_body(response)["message"]


async def test_chats_of_other_models_are_as_before(home: ToyGateway):
    await home.all_of(OMNI)

    response = await send_chat(home, model=OMNI)

    assert (response.status_code, read_error_body(response)["param"]) == (400, "model")


async def test_the_official_client_reads_it(image_gateway: ToyGateway):
    client = openai.AsyncOpenAI(
        base_url="http://gateway/v1", api_key="x", http_client=image_gateway.http, max_retries=0
    )
    body: Any = {"model": PAINTER, "messages": WISH["messages"], "seed": 7}
    more = {"modalities": ["image", "text"], "image_config": CONFIG}

    answer: Any = await client.chat.completions.create(**body, extra_body=more)

    [picture] = json.loads(answer.model_dump_json())["choices"][0]["message"]["images"]
    assert read_colour(picture) == [7, 3, 3]
