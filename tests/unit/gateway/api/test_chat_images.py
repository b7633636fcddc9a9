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

from tests.unit.gateway.house import OMNI, PAINTER, VL, House, error, events, image, text

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
async def studio(home: House) -> House:
    await home.all_of(PAINTER)
    return home


async def ask(home: House, **more: Any) -> httpx.Response:
    return await home.http.post("/v1/chat/completions", json={**WISH, **more})


def colour(picture: dict[str, Any]) -> list[int]:
    head, data = picture["image_url"]["url"].split(",")
    assert head == "data:image/png;base64"
    return [int(value) for value in np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))[0, 0]]


async def test_the_answer_has_pictures_beside_its_content(studio: House):
    response = await ask(studio)

    assert response.status_code == 200, response.text
    body = response.json()
    message = body["choices"][0]["message"]
    assert (message["content"], body["choices"][0]["finish_reason"]) == ("", "stop")
    [picture] = message["images"]
    assert (picture["type"], picture["index"], colour(picture)) == ("image_url", 0, [7, 3, 3])
    assert body["usage"]["prompt_tokens"] == 3
    assert body["usage"]["completion_tokens_details"]["image_tokens"] == body["usage"]["completion_tokens"] == 12
    assert response.headers["x-omnibus-path"] in ("T>D>V", "TDV")
    await studio.emptied()


async def test_without_text_there_is_no_content(studio: House):
    body = (await ask(studio, modalities=["image"])).json()

    assert body["choices"][0]["message"]["content"] is None


async def test_several_pictures_and_urls_can_be_wanted(studio: House):
    body = (await ask(studio, image_config={**CONFIG, "n": 2, "response_format": "url"})).json()

    urls = [picture["image_url"]["url"] for picture in body["choices"][0]["message"]["images"]]
    files = [(await studio.http.get(url)).content for url in urls]
    assert [int(np.asarray(Image.open(io.BytesIO(file)))[0, 0, 0]) for file in files] == [7, 8]


async def test_a_stream_brings_them_at_once(studio: House):
    response = await ask(studio, stream=True, stream_options={"include_usage": True})

    role, pictures, finish, usage, done = events(response)
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert colour(pictures["choices"][0]["delta"]["images"][0]) == [7, 3, 3]
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert usage["usage"]["completion_tokens"] == 12
    assert done == "[DONE]"
    await studio.emptied()


async def test_the_prompt_is_all_text_of_the_message(studio: House):
    content = [text("a boat"), text("on a lake")]

    body = (await ask(studio, messages=[{"role": "user", "content": content}])).json()

    assert colour(body["choices"][0]["message"]["images"][0])[1] == 5


async def test_the_prompt_is_what_all_but_the_model_said(studio: House):
    first = (await ask(studio, modalities=["image"])).json()["choices"][0]["message"]
    said = [
        {"role": "system", "content": "paint in oil"},
        *WISH["messages"],
        first,
        {"role": "user", "content": "bluer"},
    ]

    body = (await ask(studio, messages=said)).json()

    assert colour(body["choices"][0]["message"]["images"][0]) == [7, 7, 3]


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"model": VL}, "model"),
        ({"modalities": ["image", "audio"], "audio": {"voice": "alloy", "format": "wav"}}, "modalities"),
        ({"modalities": ["text"]}, "image_config"),
        ({"modalities": ["image", "smell"]}, "modalities[1]"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages[0].content"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [SAID, {"role": "assistant", "content": "a boat?"}, SAID]}, "messages[1]"),
        ({"messages": [SAID, {"role": "assistant", "audio": {"id": "audio_1"}}]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": [text("x"), image()]}]}, "messages"),
        (
            {
                "messages": [
                    {"role": "user", "content": [text("x"), {"type": "audio_url", "audio_url": {"url": "data:,"}}]}
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
async def test_what_cannot_be_painted_is_refused_by_name(studio: House, changed: dict[str, Any], param: str):
    studio.serve(PAINTER, VL)

    response = await ask(studio, **changed)

    assert response.status_code == 400, response.text
    assert error(response)["param"] == param
    await studio.emptied()


async def test_a_model_that_makes_pictures_is_still_no_chat_model(studio: House):
    response = await ask(studio, modalities=None, image_config=None)

    assert response.status_code == 400
    assert "not a chat model" in error(response)["message"]


async def test_chats_of_other_models_are_as_before(home: House):
    await home.all_of(OMNI)

    response = await ask(home, model=OMNI)

    assert (response.status_code, error(response)["param"]) == (400, "model")


async def test_the_official_client_reads_it(studio: House):
    client = openai.AsyncOpenAI(base_url="http://gateway/v1", api_key="x", http_client=studio.http, max_retries=0)
    asked: Any = {"model": PAINTER, "messages": WISH["messages"], "seed": 7}
    more = {"modalities": ["image", "text"], "image_config": CONFIG}

    answer: Any = await client.chat.completions.create(**asked, extra_body=more)

    [picture] = json.loads(answer.model_dump_json())["choices"][0]["message"]["images"]
    assert colour(picture) == [7, 3, 3]
