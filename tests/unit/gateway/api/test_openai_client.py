"""The ``openai`` client talks to these pieces over real HTTP."""

import asyncio
import base64
import io
import wave
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import openai
import pytest
import uvicorn
from openai import AsyncOpenAI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from omnibus.encoding.audio import encode_audio, to_pcm16
from omnibus.errors import Conflict, DeadlineExceeded, OmnibusError, Overloaded, StageFailed, StageUnavailable
from omnibus_gateway.media import inspect
from omnibus_gateway.media.fetcher import Fetcher
from omnibus_gateway.openai import chat_response, errors
from omnibus_gateway.openai import chat_response as chat_stream
from omnibus_gateway.openai.chat_request import ChatRequest
from omnibus_gateway.openai.messages import convert_messages
from omnibus_gateway.openai.parse import parse_chat, read_body
from tests.unit.gateway.samples import make_sample_picture, make_sample_sound, make_sample_tone

LIMITS = inspect.MediaLimits(body_bytes=1 << 20)
#: Models that fail, each with its error.
FAILING_MODELS = {
    "busy": partial(Overloaded, "Busy.", retry_after=3),
    "full": partial(Overloaded, "Delete some.", retry_after=0),
    "busy_for_minutes": partial(Overloaded, "Busy.", retry_after=121),
    "late": partial(DeadlineExceeded, "Late."),
    "taken": partial(Conflict, "Taken."),
    "absent": partial(StageUnavailable, "Absent."),
}


async def answer_request(http: Request) -> Response:
    """Return the parsed request; models named after an error fail with it."""
    try:
        request = parse_chat(await read_body(http.stream(), LIMITS.body_bytes))
        messages, refs = convert_messages(request)
        items = await inspect.load_media(refs, Fetcher(), LIMITS)
        if request.model in FAILING_MODELS:
            raise FAILING_MODELS[request.model]()
    except OmnibusError as error:
        body, headers = errors.error_body(error, "req-1"), errors.error_headers(error)
        return Response(body, errors.status_of(error), headers, "application/json")
    words = [item.info.mime for item in items] or [str(messages[-1]["content"])]
    if request.stream:
        return StreamingResponse(stream_frames(request, words), media_type="text/event-stream")
    return Response(await encode_whole(request, " ".join(words)), media_type="application/json")


async def encode_whole(request: ChatRequest, text: str) -> bytes:
    chat_audio = None
    if request.audio is not None and request.wants_audio:
        data = encode_audio(make_sample_tone(0.1), 24000, request.audio.format)
        chat_audio = chat_response.ChatCompletionAudio(id="audio_1", data=data, expires_at=1, transcript=text)
    return chat_response.encode_completion(
        id="chatcmpl-1",
        model=request.model,
        created=1,
        text=None if chat_audio else text,
        finish_reason="stop",
        usage=chat_response.build_usage(prompt_text=2, text=1),
        audio=chat_audio,
    )


async def stream_frames(request: ChatRequest, words: list[str]) -> AsyncIterator[bytes]:
    out = chat_stream.ChatStream("chatcmpl-1", request.model, 1, include_usage=request.wants_usage)
    yield out.role()
    for word in words:
        yield out.text(word)
    if request.model == "breaks":
        yield out.error(StageFailed("The vocoder failed.", stage="vocoder"), "req-1")
        return
    if request.wants_audio:
        yield out.audio_start("audio_1")
        yield out.audio(encode_audio(make_sample_tone(0.1), 24000, "wav"))
        yield out.transcript("hi")
        yield out.audio_end(1)
    yield out.finish("stop")
    yield out.usage(chat_response.build_usage(prompt_text=2, text=1))
    yield chat_stream.DONE


@pytest.fixture
async def client() -> AsyncIterator[AsyncOpenAI]:
    app = Starlette(routes=[Route("/v1/chat/completions", answer_request, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    socket = server.config.bind_socket()
    serving = asyncio.create_task(server.serve([socket]))
    port = socket.getsockname()[1]
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0, timeout=20) as client:
        yield client
    server.should_exit = True
    await serving


def data_url(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


async def test_a_multimodal_question_is_answered(client: AsyncOpenAI) -> None:
    recording = base64.b64encode(make_sample_sound("wav", "pcm_s16le", 0.1)).decode()

    reply = await client.chat.completions.create(
        model="m",
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what"},
                    {
                        "type": "image_url",
                        "image_url": {"url": data_url("image/png", make_sample_picture("PNG")), "detail": "low"},
                    },
                    {"type": "input_audio", "input_audio": {"data": recording, "format": "wav"}},
                ],
            }
        ],
        max_completion_tokens=5,
        seed=1,
        stop=["x"],
        user="u",
        extra_body={"top_k": 5, "repetition_penalty": 1.1, "ignore_eos": True},
    )

    assert reply.choices[0].message.content == "image/png audio/wav"
    assert reply.usage is not None
    assert reply.usage.total_tokens == 3


async def test_a_spoken_answer_arrives_as_a_file(client: AsyncOpenAI) -> None:
    reply = await client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "hi"}],
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "flac"},
    )

    message_audio = reply.choices[0].message.audio
    assert message_audio is not None
    assert message_audio.transcript == "hi"
    assert base64.b64decode(message_audio.data).startswith(b"fLaC")


async def test_a_stream_of_text_sound_and_usage_is_read(client: AsyncOpenAI) -> None:
    chunks: list[Any] = []
    async for chunk in await client.chat.completions.create(
        model="m",
        messages=[{"role": "user", "content": "hi"}],
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "wav"},
        stream=True,
        stream_options={"include_usage": True},
    ):
        chunks.append(chunk)

    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    audio_deltas = [delta.audio for delta in deltas if getattr(delta, "audio", None)]
    pieces = [piece["data"] if isinstance(piece, dict) else piece.data for piece in audio_deltas if _get_data(piece)]
    assert "".join(delta.content or "" for delta in deltas) == "hi"
    with wave.open(io.BytesIO(b"".join(map(base64.b64decode, pieces)))) as reader:
        assert reader.readframes(10_000) == to_pcm16(make_sample_tone(0.1))
    assert chunks[-1].usage.total_tokens == 3


def _get_data(piece: Any) -> str | None:
    return piece.get("data") if isinstance(piece, dict) else piece.data


async def test_a_bad_request_names_its_parameter(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], n=9)

    assert (caught.value.param, caught.value.type) == ("n", "invalid_request_error")


async def test_an_internal_url_is_a_bad_request_at_its_place(client: AsyncOpenAI) -> None:
    part: Any = {"type": "image_url", "image_url": {"url": "https://169.254.169.254/latest"}}

    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": [part]}])

    assert caught.value.param == "messages[0].content[0].image_url.url"


async def test_a_body_over_the_limit_is_413(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * (2 << 20)}])

    assert caught.value.status_code == 413


async def test_overload_is_a_rate_limit_with_a_time_to_wait(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.RateLimitError) as caught:
        await client.chat.completions.create(model="busy", messages=[{"role": "user", "content": "hi"}])

    assert caught.value.response.headers["retry-after"] == "3"


@pytest.mark.behaviour(
    "openai 3.52",
    "sends a request again, twice, for each 408, 409, 429 and 5xx",
    "says `x-should-retry: false` for what would fail again, as a missed deadline",
    source="openai-python, `_base_client.py`, `_should_retry`",
)
@pytest.mark.parametrize(
    ("model", "requests"), [("full", 1), ("busy_for_minutes", 1), ("late", 1), ("taken", 1), ("absent", 2)]
)
async def test_the_client_sends_again_only_what_may_succeed(client: AsyncOpenAI, model: str, requests: int) -> None:
    retrying = client.with_options(max_retries=1)

    with pytest.raises(openai.APIStatusError) as caught:
        await retrying.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}])

    assert int(caught.value.response.request.headers["x-stainless-retry-count"]) == requests - 1


async def test_an_error_in_the_middle_of_a_stream_is_raised_by_the_client(client: AsyncOpenAI) -> None:
    chunks = await client.chat.completions.create(
        model="breaks", messages=[{"role": "user", "content": "hi"}], stream=True
    )

    assert (await anext(chunks)).choices[0].delta.role == "assistant"
    assert (await anext(chunks)).choices[0].delta.content == "hi"
    with pytest.raises(openai.APIError, match="The vocoder failed"):
        await anext(chunks)
