"""Text and speech stream together, and add up to the whole answer."""

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import av
import numpy as np
import pytest
from openai.types.chat import ChatCompletionChunk

from tests.e2e.omni.speech import APART, CODES, VOICE, Spoken, assert_same_speech, make_speech_body, read_spoken
from tests.e2e.questions import make_audio, make_image, make_question
from tests.e2e.system import System
from tests.e2e.watch import parse_events

pytestmark = pytest.mark.e2e

QUESTION = make_question(make_image(2), make_audio(1.1, 1), "describe")
LONG: dict[str, Any] = {"max_tokens": 300, "ignore_eos": True}
LONGEST: dict[str, Any] = {"max_tokens": 2000, "ignore_eos": True}  # seconds of text on any machine
STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


async def stream_chat(omni: System, path: str = "", **more: Any) -> list[dict[str, Any]]:
    headers = {"x-omnibus-path": path} if path else {}
    async with omni.http() as http:
        answer = await http.post(
            "/v1/chat/completions", json=make_speech_body(QUESTION, **STREAM, **more), headers=headers
        )
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.content.endswith(b"data: [DONE]\n\n")
    return parse_events(answer.content)


def read_deltas(chunks: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (event["choices"][0]["delta"] for event in chunks if event["choices"])


def join_text(chunks: list[dict[str, Any]]) -> str:
    return "".join(delta.get("content") or "" for delta in read_deltas(chunks))


def join_sound(chunks: list[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(delta.get("audio", {}).get("data", "")) for delta in read_deltas(chunks))


@pytest.mark.parametrize("path", [APART, "M"])
async def test_sound_begins_before_the_text_has_ended(omni: System, path: str):
    chunks = await stream_chat(omni, path, **LONGEST)

    order = [
        "sound" if delta.get("audio", {}).get("data") else "text" for delta in read_deltas(chunks) if has_content(delta)
    ]
    assert order.index("sound") < len(order) - 1 - order[::-1].index("text")
    assert order.count("sound") > 1


def has_content(delta: dict[str, Any]) -> bool:
    return bool(delta.get("content") or delta.get("audio", {}).get("data"))


@pytest.mark.parametrize("format", ["wav", "pcm16"])
@pytest.mark.parametrize("path", [APART, "M"])
async def test_a_stream_adds_up_to_the_whole_answer(omni: System, path: str, format: str):
    chunks = await stream_chat(omni, path, format=format)
    async with omni.http() as http:
        answer = await http.post(
            "/v1/chat/completions", json=make_speech_body(QUESTION), headers={"x-omnibus-path": path}
        )
    whole = read_spoken(answer.json())

    data = join_sound(chunks)
    samples = play_wav(data) if format == "wav" else np.frombuffer(data, "<i2")
    assert_same_speech(Spoken(join_text(chunks), samples), whole)
    assert chunks[-1]["usage"] == answer.json()["usage"]


@pytest.mark.parametrize("format", ["mp3", "flac", "opus", "aac"])
async def test_a_compressed_stream_plays_as_long_as_the_plain_one(omni: System, format: str):
    plain = len(play_wav(join_sound(await stream_chat(omni)))) / 24_000

    data = join_sound(await stream_chat(omni, audio={"voice": VOICE, "format": format, "max_tokens": CODES}))

    with av.open(io.BytesIO(data)) as file:
        seconds = sum(frame.samples / frame.sample_rate for frame in file.decode(audio=0))
    assert seconds == pytest.approx(plain, abs=0.1)


def play_wav(file: bytes) -> np.ndarray:
    """Playback of a WAV file with unknown initial length: int16 [n]."""
    with av.open(io.BytesIO(file)) as container:
        stream = container.streams.audio[0]
        assert (stream.rate, stream.channels, container.format.name) == (24_000, 1, "wav")
        return np.concatenate([frame.to_ndarray()[0] for frame in container.decode(stream)])


async def test_every_event_is_a_chunk_of_the_official_types(omni: System):
    chunks = await stream_chat(omni, **LONG)

    for event in chunks:
        chunk = ChatCompletionChunk.model_validate_json(json.dumps(event), strict=True)
        assert chunk.id == chunks[0]["id"]
        assert chunk.object == "chat.completion.chunk"
    head, *_, last, usage = chunks
    assert head["choices"][0]["delta"]["role"] == "assistant"
    assert [event["choices"][0]["finish_reason"] for event in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert last["choices"][0]["delta"] == {}
    assert usage["choices"] == []
    assert [event["usage"] for event in chunks[:-1]] == [None] * (len(chunks) - 1)


async def test_usage_counts_text_image_and_sound(omni: System):
    chunks = await stream_chat(omni, **LONG)

    usage = chunks[-1]["usage"]
    prompt, completion = usage["prompt_tokens_details"], usage["completion_tokens_details"]
    assert completion["text_tokens"] == 300
    assert completion["audio_tokens"] == len(play_wav(join_sound(chunks))) * 50 // 24_000 > 0
    assert usage["completion_tokens"] == 300 + completion["audio_tokens"]
    assert prompt["image_tokens"] > 0 < prompt["audio_tokens"]
    assert usage["prompt_tokens"] == prompt["text_tokens"] + prompt["image_tokens"] + prompt["audio_tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_the_audio_parts_share_one_id_and_end_with_their_expiry(omni: System):
    audio_parts = [delta["audio"] for delta in read_deltas(await stream_chat(omni)) if "audio" in delta]

    assert audio_parts[0].keys() == {"id"}
    assert all(part.keys() in ({"data"}, {"transcript"}) for part in audio_parts[1:-1])
    assert audio_parts[-1].keys() == {"expires_at"}


async def test_the_official_client_reads_the_stream(omni: System):
    async with omni.client() as client:
        stream: Any = await client.chat.completions.create(**make_speech_body(QUESTION, **STREAM))
        chunks = [chunk async for chunk in stream]

    answer_text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert answer_text == join_text(await stream_chat(omni))
    assert chunks[-1].usage is not None
