"""Every frame of a stream is a valid chunk by ``openai``'s types."""

import base64
import json
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk

from omnibus.errors import BadRequest, Overloaded, StageFailed
from omnibus_gateway.openai import chat_response as chat_stream
from omnibus_gateway.openai.chat_response import DONE, ChatStream, build_usage


def make_stream(**options: Any) -> ChatStream:
    return ChatStream("chatcmpl-1", 'm"\n', 1700000000, **options)


def split_events(data: bytes) -> list[bytes]:
    """Return the payloads of whole SSE events."""
    assert data.endswith(b"\n\n")
    frames = data[:-2].split(b"\n\n")
    assert all(frame.startswith(b"data: ") and b"\n" not in frame for frame in frames)
    return [frame[6:] for frame in frames]


def parse_chunks(data: bytes) -> list[ChatCompletionChunk]:
    """Return the chunks, checked against OpenAI's client and our own document."""
    valid_chunks = []
    for event in split_events(data):
        chunk = ChatCompletionChunk.model_validate_json(event, strict=True)
        assert chunk.model_extra == {}
        assert (chunk.id, chunk.model, chunk.created) == ("chatcmpl-1", 'm"\n', 1700000000)
        msgspec.json.decode(event, type=chat_stream.ChatCompletionChunk, strict=True)
        valid_chunks.append(chunk)
    return valid_chunks


def audio_of(data: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the ``delta.audio`` objects, in order."""
    return [
        json.loads(event)["choices"][0]["delta"]["audio"] for frame in data if frame for event in split_events(frame)
    ]


def test_a_text_stream_is_role_text_finish_and_usage() -> None:
    out = make_stream(include_usage=True, fingerprint="e7")

    stream_chunks = parse_chunks(
        out.role()
        + out.text("Hel")
        + out.text('lo "\n\u2028')
        + out.finish("stop")
        + out.usage(build_usage(text=2, prompt_text=3))
    )

    assert stream_chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream_chunks[:-1]) == 'Hello "\n\u2028'
    assert [chunk.choices[0].finish_reason for chunk in stream_chunks[:-1]] == [None, None, None, "stop"]
    assert [chunk.usage for chunk in stream_chunks[:-1]] == [None] * 4
    assert stream_chunks[-1].choices == []
    assert stream_chunks[-1].usage is not None
    assert stream_chunks[-1].usage.total_tokens == 5
    assert {chunk.system_fingerprint for chunk in stream_chunks} == {"e7"}
    assert DONE == b"data: [DONE]\n\n"


def test_usage_is_null_in_earlier_chunks_only_when_it_was_asked_for() -> None:
    usage_stream, silent = make_stream(include_usage=True), make_stream()

    assert json.loads(split_events(usage_stream.text("a"))[0])["usage"] is None
    assert "usage" not in json.loads(split_events(silent.text("a"))[0])
    assert silent.usage(build_usage(text=2)) == b""


def test_a_spoken_stream_has_the_id_first_and_the_expiry_alone_at_the_end() -> None:
    out = make_stream()

    frames = [
        out.audio_start("audio_1"),
        out.transcript("Hi "),
        out.audio(bytes(60)),
        out.transcript("there"),
        out.audio(bytes(60)),
        out.audio_end(1700003600),
    ]

    for frame in [out.role(None), *frames, out.finish("stop")]:
        parse_chunks(frame)
    audio = audio_of(frames)
    assert audio[0] == {"id": "audio_1"}
    assert audio[-1] == {"expires_at": 1700003600}
    assert "".join(piece.get("transcript", "") for piece in audio) == "Hi there"
    assert json.loads(split_events(out.role(None))[0])["choices"][0]["delta"]["content"] is None


cuts = st.lists(st.integers(0, 40), max_size=12)


@settings(deadline=None)
@given(cuts)
def test_joined_sound_is_the_sound_however_it_was_cut(sizes: list[int]) -> None:
    samples = np.arange(sum(sizes), dtype="<i2")
    out = make_stream()
    frames, start = [], 0
    for size in sizes:
        frames.append(out.audio(samples[start : start + size].tobytes()))
        start += size
    frames.append(out.audio_end(1))

    texts = [piece["data"] for piece in audio_of(frames) if "data" in piece]
    pieces = [base64.b64decode(text, validate=True) for text in texts]

    assert b"".join(pieces) == samples.tobytes()
    assert base64.b64decode("".join(texts), validate=True) == b"".join(pieces)  # no padding in the middle
    assert all(len(piece) % 2 == 0 for piece in pieces)  # never half a sample


def test_no_sound_yet_is_no_frame() -> None:
    out = make_stream()

    assert out.audio(b"") == b""
    assert out.audio(bytes(4)) == b""
    assert audio_of([out.audio(bytes(2))]) == [{"data": base64.b64encode(bytes(6)).decode()}]
    assert audio_of([out.audio_end(7)]) == [{"expires_at": 7}]


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter"])
def test_each_finish_reason_is_one_of_openais(reason: Any) -> None:
    (chunk,) = parse_chunks(make_stream().finish(reason))

    assert chunk.choices[0].finish_reason == reason


@pytest.mark.parametrize(
    "error",
    [
        StageFailed("The vocoder failed.", stage="vocoder", executor="ex-1", attempt=1),
        Overloaded("Busy.", retry_after=2.0),
        BadRequest("No.", param="messages"),
    ],
)
def test_an_error_in_the_middle_is_one_frame_with_an_error_body(error: Any) -> None:
    (event,) = split_events(make_stream().error(error, "req-1"))

    body = json.loads(event)["error"]
    assert (body["message"], body["code"], body["request_id"]) == (error.message, error.code, "req-1")
    assert json.loads(split_events(make_stream().error(error.to_problem()))[0])["error"]["message"] == error.message


@settings(deadline=None)
@given(st.text())
def test_any_text_survives_the_stream(text: str) -> None:
    out = make_stream()

    assert parse_chunks(out.text(text))[0].choices[0].delta.content == text
    assert audio_of([out.transcript(text)]) == [{"transcript": text}]
