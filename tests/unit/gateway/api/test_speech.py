"""Text to speech: the route from a text to a file in pieces, with executors that hum a ramp for each word."""

import asyncio
import base64
import json
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from omnibus.errors import BadRequest
from omnibus.executor.runner import Job
from omnibus_gateway.media.headers.sniff import sniff_mime
from tests.unit.encoding.test_audio import decode
from tests.unit.gateway.house import OMNI, RATE, VL, House, error

SPEECH = "/v1/audio/speech"
TEXT = "one two three four five"
WISH: dict[str, Any] = {"model": OMNI, "input": TEXT, "voice": "Chelsie", "response_format": "pcm"}


@pytest.fixture
async def studio(home: House) -> House:
    await home.all_of(OMNI)
    return home


async def speak(home: House, **more: Any) -> httpx.Response:
    return await home.http.post(SPEECH, json={**WISH, **more})


def samples(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<i2")


async def test_the_text_itself_is_spoken(studio: House):
    response = await speak(studio)

    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "audio/pcm"
    assert len(samples(response.content)) == 5 * 240
    ended = await studio.ended(response.headers["x-request-id"])
    assert ended.answer.text == "one two three four five "
    assert ended.answer.audio_seconds == pytest.approx(5 * 240 / RATE)
    await studio.emptied()


async def test_the_model_is_asked_to_read_and_how(studio: House):
    heard: list[Any] = []

    async def listen(job: Job) -> None:
        heard.append(await job.value("messages"))
        job.close("text", {"finish_reason": "stop", "usage": {}})
        job.close("rows")

    studio.serve(OMNI)
    await studio.executor(OMNI, "Th", "thinker", id="listening", thinker=listen)
    for _ in range(4):
        await speak(studio, instructions="Whisper.")

    assert heard[0] == [
        {"role": "system", "content": "You read texts aloud, exactly as they are written. Whisper."},
        {"role": "user", "content": f"Read this text aloud:\n\n{TEXT}"},
    ]


@pytest.mark.parametrize(
    ("format", "kind", "mime"),
    [
        (None, "audio/mpeg", "audio/mpeg"),
        ("mp3", "audio/mpeg", "audio/mpeg"),
        ("opus", "audio/ogg", "audio/ogg"),
        ("aac", "audio/aac", "audio/aac"),
        ("flac", "audio/flac", "audio/flac"),
        ("wav", "audio/wav", "audio/wav"),
    ],
)
async def test_speech_comes_in_every_format(studio: House, format: str | None, kind: str, mime: str):
    response = await speak(studio, response_format=format, input="word " * 40)

    assert response.headers["content-type"] == kind
    assert sniff_mime(response.content) == mime
    sound, rate = decode(response.content)
    assert len(sound) / rate == pytest.approx(40 * 240 / RATE, abs=0.06)
    await studio.emptied()


async def test_another_speed_is_another_length(studio: House):
    usual, quick = [await speak(studio, input="word " * 100, speed=speed) for speed in (1.0, 2.0)]

    assert len(quick.content) / len(usual.content) == pytest.approx(0.5, rel=0.1)


async def test_events_hold_the_file_and_then_the_usage(studio: House):
    response = await speak(studio, stream_format="sse")

    assert response.headers["content-type"].startswith("text/event-stream")
    *deltas, done = [json.loads(block[6:]) for block in response.text.split("\n\n") if block]
    assert {each["type"] for each in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(each["audio"]) for each in deltas) == (await speak(studio)).content
    assert done == {
        "type": "speech.audio.done",
        "usage": {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7},
    }


async def test_sound_leaves_before_the_rest_is_made(home: House):
    client = Listener(home)

    async def slow(job: Job) -> None:
        async for item in job.stream("codes"):
            for _ in item.data.get("codes", []):
                await job.send("audio", {"rate": RATE}, np.ones(240, np.float32))
                await client.heard.wait()

    await vocoder(home, slow)
    await client.ask()

    assert len(client.parts[0]) == 480
    assert len(b"".join(client.parts)) == 5 * 480
    assert client.complete
    await home.emptied()


class Listener:
    """A client that signals the arrival of each piece."""

    def __init__(self, home: House) -> None:
        self._home = home
        self.heard = asyncio.Event()
        self.parts: list[bytes] = []
        self.complete = False

    async def ask(self, **more: Any) -> None:
        body = [json.dumps({**WISH, **more}).encode()]

        async def receive() -> Any:
            return {"type": "http.request", "body": body.pop()} if body else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                self.parts += [message["body"]] if message["body"] else []
                self.complete = not message.get("more_body")
                self.heard.set()

        scope = {"type": "http", "method": "POST", "path": SPEECH, "headers": []}
        await self._home.app(scope, receive, send)


async def vocoder(home: House, work: Any) -> None:
    """Serve a speaking model with the vocoder ``work``."""
    home.serve(OMNI)
    await home.executor(OMNI, "Th", "thinker")
    await home.executor(OMNI, "Ta", "talker")
    await home.executor(OMNI, "V", "vocoder", vocoder=work)


@pytest.mark.parametrize("voice", ["Ethan", "alloy", {"id": "Ethan"}])
async def test_voices_are_the_models_own_or_openais(studio: House, voice: Any):
    assert (await speak(studio, voice=voice)).status_code == 200


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": "x" * 4097}, "input"),
        ({"input": None}, "input"),
        ({"voice": "Nobody"}, "voice"),
        ({"voice": None}, "voice"),
        ({"voice": ""}, "voice"),
        ({"model": VL}, "model"),
        ({"response_format": "ogg"}, "response_format"),
        ({"speed": 0.2}, "speed"),
        ({"speed": 4.1}, "speed"),
        ({"stream_format": "mp3"}, "stream_format"),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"ref_audio": "x"}, "ref_audio"),
    ],
)
async def test_what_cannot_be_spoken_is_refused_by_name(studio: House, changed: dict[str, Any], param: str):
    studio.serve(OMNI, VL)

    response = await speak(studio, **changed)

    assert response.status_code == 400, response.text
    assert error(response)["param"] == param
    await studio.emptied()


async def test_a_text_that_the_model_refuses_is_called_the_input(home: House):
    async def refuse(job: Job) -> None:
        raise BadRequest("the text holds a control token", param="say")

    home.serve(OMNI)
    await home.executor(OMNI, "Th", "thinker", thinker=refuse)
    await home.executor(OMNI, "Ta", "talker")
    await home.executor(OMNI, "V", "vocoder")

    response = await speak(home)

    assert (response.status_code, error(response)["param"]) == (400, "input")
    await home.emptied()


async def test_an_unknown_model_is_not_found(studio: House):
    assert (await speak(studio, model="nobody")).status_code == 404


@pytest.mark.parametrize("how", ["audio", "sse"])
async def test_speech_that_breaks_off_is_not_taken_as_whole(home: House, how: str):
    client = Listener(home)

    async def breaks(job: Job) -> None:
        await job.send("audio", {"rate": RATE}, np.ones(240, np.float32))
        await client.heard.wait()
        raise RuntimeError("out of breath")

    await vocoder(home, breaks)
    await client.ask(stream_format=how)

    if how == "audio":
        assert (len(client.parts), client.complete) == (1, False)
    else:
        told = json.loads(client.parts[-1].removeprefix(b"data: "))
        assert (told["error"]["code"], told["error"]["stage"]) == ("stage_failed", "vocoder")
    await home.emptied()


async def test_the_official_client_hears_it(studio: House):
    client = openai.AsyncOpenAI(base_url="http://gateway/v1", api_key="x", http_client=studio.http, max_retries=0)

    whole = await client.audio.speech.create(model=OMNI, input=TEXT, voice="alloy", response_format="wav")
    async with client.audio.speech.with_streaming_response.create(
        model=OMNI, input=TEXT, voice="alloy", response_format="wav"
    ) as streamed:
        pieces = [piece async for piece in streamed.iter_bytes()]

    assert whole.content == b"".join(pieces)
    assert len(decode(whole.content)[0]) == 5 * 240
