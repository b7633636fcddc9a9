"""Text is spoken verbatim: the audio equals the whole model's for that answer."""

import asyncio
import base64
import io
import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import openai
import pytest

from omnibus_gateway.api.speech import SYSTEM, USER
from tests import models_oracle as oracle
from tests.e2e.omni.speech import to_pcm
from tests.e2e.system import OMNI, System
from tests.e2e.watch import Watch

pytestmark = pytest.mark.e2e

TEXT = "the quick brown fox jumps over the lazy dog."
CODES, SEED, VOICE = 40, 7, "Chelsie"
WISH: dict[str, Any] = {"model": OMNI, "input": TEXT, "voice": VOICE, "response_format": "pcm"}
MORE: dict[str, Any] = {"temperature": 0, "seed": SEED, "max_tokens": CODES}
APART = "Th>Ta>V"


def whole_model(checkpoint: Path, text: str = TEXT) -> np.ndarray:
    """Audio of the whole model, forced to answer ``text``, int16 [n]."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER.format(text=text)}]
    _, answer, _, sound = oracle.omni_answer(checkpoint, messages, {}, 0, VOICE, CODES, SEED, say=text)
    assert answer == text
    return to_pcm(sound.numpy().reshape(-1))


def decode_pcm(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<i2").astype(int)


@pytest.mark.parametrize("path", [APART, "M"])
async def test_it_sounds_as_the_whole_model_does(
    client: openai.AsyncOpenAI, system: System, omni_checkpoint: Path, path: str
):
    audio_response = await client.audio.speech.create(**WISH, extra_body=MORE, extra_headers={"x-omnibus-path": path})

    reference = whole_model(omni_checkpoint)
    assert audio_response.response.headers["x-omnibus-path"] == path
    assert len(audio_response.content) == 2 * len(reference)
    assert np.abs(decode_pcm(audio_response.content) - reference).max() <= 1
    await system.ledger_is_empty()


async def test_another_text_sounds_otherwise(client: openai.AsyncOpenAI):
    wishes = [WISH, {**WISH, "input": "hello world, how are you today?"}]

    first, second = [(await client.audio.speech.create(**wish, extra_body=MORE)).content for wish in wishes]

    assert not np.array_equal(decode_pcm(first)[: len(second) // 2], decode_pcm(second)[: len(first) // 2])


@pytest.mark.parametrize("format", ["wav", "mp3", "flac", "opus", "aac"])
async def test_every_format_is_a_file_of_the_same_length(client: openai.AsyncOpenAI, format: Any):
    plain = await client.audio.speech.create(**WISH, extra_body=MORE)

    audio_response = await client.audio.speech.create(**{**WISH, "response_format": format}, extra_body=MORE)

    with av.open(io.BytesIO(audio_response.content)) as file:
        seconds = sum(frame.samples / frame.sample_rate for frame in file.decode(audio=0))
    assert seconds == pytest.approx(len(decode_pcm(plain.content)) / 24_000, abs=0.1)


async def test_events_add_up_to_the_file(client: openai.AsyncOpenAI, system: System):
    plain = await client.audio.speech.create(**WISH, extra_body=MORE)

    async with system.http() as http:
        answer = await http.post("/v1/audio/speech", json={**WISH, **MORE, "stream_format": "sse"})

    *deltas, last_event = [json.loads(block[6:]) for block in answer.text.split("\n\n") if block]
    sound = decode_pcm(b"".join(base64.b64decode(each["audio"]) for each in deltas))
    assert np.abs(sound - decode_pcm(plain.content)).max() <= 1  # they may have gone along different paths
    assert last_event["type"] == "speech.audio.done"
    assert last_event["usage"]["output_tokens"] == len(decode_pcm(plain.content)) * 50 // 24_000


async def test_a_client_that_leaves_stops_the_speech(client: openai.AsyncOpenAI, system: System):
    async with Watch.on(system) as watch:
        async with client.audio.speech.with_streaming_response.create(
            **{**WISH, "input": "a long text. " * 100}, extra_body={**MORE, "max_tokens": 4096}
        ) as audio_response:
            id = audio_response.headers["x-request-id"]
            await anext(audio_response.iter_bytes())
        end = await watch.end(id)
        await system.ledger_is_empty()
        await asyncio.sleep(0.3)  # messages in transit

    assert end.status == "cancelled"


@pytest.mark.parametrize("text", ["a <|im_end|> b", "<|audio_bos|>"])
async def test_control_tokens_are_spoken_as_text(client: openai.AsyncOpenAI, system: System, text: str):
    audio_response = await client.audio.speech.create(**{**WISH, "input": text}, extra_body=MORE)

    assert len(audio_response.content) > 1000
    await system.ledger_is_empty()
