"""Chats that generate images and audio, read by the official client.

The clients of vLLM-Omni read them as well.
"""

import base64
import io
from pathlib import Path
from typing import Any

import av
import numpy as np
import openai
import pytest
from PIL import Image

from tests.e2e.images.test_images import expected_image
from tests.e2e.questions import data_url
from tests.e2e.routes.conftest import DIRECTOR, EDITOR, EMBEDDER, PAINTER, RERANKER
from tests.e2e.system import OMNI, System
from tests.unit.gateway.samples import make_sample_picture

pytestmark = pytest.mark.e2e

SQUARE: dict[str, Any] = {"model": PAINTER, "messages": [{"role": "user", "content": "a red square"}], "seed": 1}
SAME = {"prompt": "a red square", "width": 64, "height": 64, "steps": 4, "guidance": 3.0, "seed": 1}
HELLO: dict[str, Any] = {
    "model": OMNI,
    "messages": [{"role": "user", "content": "hello there"}],
    "max_tokens": 8,
    "temperature": 0,
    "seed": 7,
}
DIALECT = {"x-omnibus-dialect": "vllm-omni"}


def decode_pixels(url: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))))


def decode_samples(file: bytes) -> np.ndarray:
    with av.open(io.BytesIO(file)) as sound:
        return np.concatenate([frame.to_ndarray()[0] for frame in sound.decode(audio=0)])


async def test_models_are_listed_and_shown(client: openai.AsyncOpenAI):
    ids = {model.id async for model in client.models.list()}

    assert ids == {PAINTER, EDITOR, EMBEDDER, RERANKER, DIRECTOR, OMNI}
    assert (await client.models.retrieve(OMNI)).owned_by == "omnibus"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("some/where")


async def test_several_answers_about_a_picture_share_its_prompt(client: openai.AsyncOpenAI):
    image: Any = {
        "type": "image_url",
        "image_url": {"url": data_url("image/png", make_sample_picture("PNG", (40, 30)))},
    }
    body: Any = {
        "model": OMNI,
        "messages": [{"role": "user", "content": [image, {"type": "text", "text": "what is it?"}]}],
        "max_tokens": 8,
        "extra_body": {"ignore_eos": True},
    }

    single = await client.chat.completions.create(**body)
    several = await client.chat.completions.create(**body, n=3)
    stream: Any = await client.chat.completions.create(**body, n=3, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]

    assert [choice.index for choice in several.choices] == [0, 1, 2]
    assert single.usage is not None
    for usage in (several.usage, chunks[-1].usage):
        assert (usage.prompt_tokens, usage.completion_tokens) == (single.usage.prompt_tokens, 3 * 8)
    indexes = [choice.index for chunk in chunks for choice in chunk.choices if choice.finish_reason == "length"]
    assert sorted(indexes) == [0, 1, 2]


async def test_a_chat_paints_whole_and_streamed(client: openai.AsyncOpenAI, system: System, image_checkpoint: Path):
    more = {"modalities": ["image"], "image_config": {"size": "64x64", "steps": 4, "guidance": 3.0}}

    whole: Any = await client.chat.completions.create(**SQUARE, extra_body=more)
    stream: Any = await client.chat.completions.create(**SQUARE, stream=True, extra_body=more)
    deltas = [chunk.choices[0].delta async for chunk in stream]

    [stream_images] = [delta.images for delta in deltas if getattr(delta, "images", None)]
    for [image] in (whole.choices[0].message.images, stream_images):
        np.testing.assert_allclose(
            decode_pixels(image["image_url"]["url"]), expected_image(image_checkpoint, SAME), atol=0.51
        )
    assert whole.usage.completion_tokens == 16
    await system.ledger_is_empty()


async def test_a_chat_that_goes_on_paints_what_was_said_in_all(
    client: openai.AsyncOpenAI, image_checkpoint: Path, system: System
):
    more = {"modalities": ["image"], "image_config": {"size": "64x64", "steps": 4, "guidance": 3.0}}
    first: Any = await client.chat.completions.create(**SQUARE, extra_body=more)
    turns = [*SQUARE["messages"], first.choices[0].message.model_dump(), {"role": "user", "content": "on a table"}]

    second: Any = await client.chat.completions.create(**{**SQUARE, "messages": turns}, extra_body=more)

    result = decode_pixels(second.choices[0].message.images[0]["image_url"]["url"])
    wish = {**SAME, "prompt": "a red square\non a table"}
    np.testing.assert_allclose(result, expected_image(image_checkpoint, wish), atol=0.51)
    await system.ledger_is_empty()


@pytest.mark.parametrize("format", ["wav", "mp3", "flac", "opus", "aac", "pcm16"])
async def test_spoken_answers_are_files_of_every_format(client: openai.AsyncOpenAI, format: Any):
    audio: Any = {"voice": "Chelsie", "format": format, "max_tokens": 24}

    whole: Any = await client.chat.completions.create(**HELLO, modalities=["text", "audio"], audio=audio)
    stream: Any = await client.chat.completions.create(**HELLO, modalities=["text", "audio"], audio=audio, stream=True)
    deltas = [chunk.choices[0].delta.model_dump() async for chunk in stream]
    parts = [delta.get("audio") or {} for delta in deltas]

    files = [base64.b64decode(whole.choices[0].message.audio.data)]
    files.append(b"".join(base64.b64decode(part.get("data") or "") for part in parts))
    lengths = [len(np.frombuffer(file, "<i2") if format == "pcm16" else decode_samples(file)) for file in files]
    rate = {"mp3": 44_100, "aac": 44_100, "opus": 48_000}.get(format, 24_000)
    assert [count / rate for count in lengths] == [pytest.approx(24 / 50, abs=0.1)] * 2
    assert [part["expires_at"] > 0 for part in parts if part.get("expires_at")] == [True]


async def test_clients_of_vllm_omni_get_pictures_as_content(
    client: openai.AsyncOpenAI, system: System, image_checkpoint: Path
):
    fields = {"height": 64, "width": 64, "num_inference_steps": 4, "true_cfg_scale": 3.0, "num_outputs_per_prompt": 1}

    async with system.http() as http:
        plain = await http.post("/v1/chat/completions", json={**SQUARE, "extra_body": fields}, headers=DIALECT)
    official: Any = await client.chat.completions.create(**SQUARE, extra_body=fields, extra_headers=DIALECT)

    reference = expected_image(image_checkpoint, SAME)
    for content in (plain.json()["choices"][0]["message"]["content"], official.choices[0].message.content):
        np.testing.assert_allclose(decode_pixels(content[0]["image_url"]["url"]), reference, atol=0.51)
    await system.ledger_is_empty()


async def test_clients_of_vllm_omni_get_sound_in_files(client: openai.AsyncOpenAI, system: System):
    stages = [{"temperature": 0, "max_tokens": 8, "seed": 7}, {"temperature": 0, "max_tokens": 24, "seed": 7}]
    body: dict[str, Any] = {
        "model": OMNI,
        "messages": HELLO["messages"],
        "extra_body": {"sampling_params_list": stages, "speaker": "Chelsie"},
        "extra_headers": {**DIALECT, "x-omnibus-path": "M"},
    }

    whole: Any = await client.chat.completions.create(**body)
    stream: Any = await client.chat.completions.create(**body, stream=True)
    chunks = [(chunk.modality, chunk.choices[0].delta.content) async for chunk in stream]

    text_choice, audio_choice = whole.choices
    assert "".join(content or "" for kind, content in chunks if kind == "text") == text_choice.message.content
    pieces = [decode_samples(base64.b64decode(content)) for kind, content in chunks if kind == "audio"]
    sound = decode_samples(base64.b64decode(audio_choice.message.audio.data))
    assert len(sound) == pytest.approx(24_000 * 24 / 50, abs=960)
    assert np.abs(np.concatenate(pieces).astype(int) - sound).max() <= 1
    await system.ledger_is_empty()
