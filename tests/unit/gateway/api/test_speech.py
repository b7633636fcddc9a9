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
from omnibus.families import catalog
from omnibus_gateway.media.inspect import sniff_mime
from tests.unit.encoding.test_audio import decode_audio
from tests.unit.gateway.house import OMNI, RATE, SPEAKER, VL, ToyGateway, play_calls, read_error_body

SPEECH = "/v1/audio/speech"
TEXT = "one two three four five"
WISH: dict[str, Any] = {"model": OMNI, "input": TEXT, "voice": "Chelsie", "response_format": "pcm"}


@pytest.fixture
async def speech_gateway(home: ToyGateway) -> ToyGateway:
    await home.all_of(OMNI)
    return home


async def post_speech(home: ToyGateway, **more: Any) -> httpx.Response:
    return await home.http.post(SPEECH, json={**WISH, **more})


def read_samples(data: bytes) -> np.ndarray:
    return np.frombuffer(data, "<i2")


async def test_the_text_itself_is_spoken(speech_gateway: ToyGateway):
    response = await post_speech(speech_gateway)

    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "audio/pcm"
    assert len(read_samples(response.content)) == 5 * 240
    end_record = await speech_gateway.ended(response.headers["x-request-id"])
    assert end_record.answer.text == "one two three four five "
    assert end_record.answer.audio_seconds == pytest.approx(5 * 240 / RATE)
    await speech_gateway.emptied()


async def test_the_model_is_asked_to_read_and_how(speech_gateway: ToyGateway):
    received_messages: list[Any] = []

    async def record_messages(job: Job) -> None:
        received_messages.append(await job.value("messages"))
        job.close("text", {"finish_reason": "stop", "usage": {}})
        job.close("rows")

    speech_gateway.serve(OMNI)
    await speech_gateway.executor(OMNI, "Th", "thinker", id="listening", thinker=record_messages)
    for _ in range(4):
        await post_speech(speech_gateway, instructions="Whisper.")

    assert received_messages[0] == [
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
async def test_speech_comes_in_every_format(speech_gateway: ToyGateway, format: str | None, kind: str, mime: str):
    response = await post_speech(speech_gateway, response_format=format, input="word " * 40)

    assert response.headers["content-type"] == kind
    assert sniff_mime(response.content) == mime
    sound, rate = decode_audio(response.content)
    assert len(sound) / rate == pytest.approx(40 * 240 / RATE, abs=0.06)
    await speech_gateway.emptied()


async def test_another_speed_is_another_length(speech_gateway: ToyGateway):
    usual, quick = [await post_speech(speech_gateway, input="word " * 100, speed=speed) for speed in (1.0, 2.0)]

    assert len(quick.content) / len(usual.content) == pytest.approx(0.5, rel=0.1)


async def test_events_hold_the_file_and_then_the_usage(speech_gateway: ToyGateway):
    response = await post_speech(speech_gateway, stream_format="sse")

    assert response.headers["content-type"].startswith("text/event-stream")
    *deltas, end_event = [json.loads(block[6:]) for block in response.text.split("\n\n") if block]
    assert {each["type"] for each in deltas} == {"speech.audio.delta"}
    assert b"".join(base64.b64decode(each["audio"]) for each in deltas) == (await post_speech(speech_gateway)).content
    assert end_event == {
        "type": "speech.audio.done",
        "usage": {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7},
    }


async def test_sound_leaves_before_the_rest_is_made(home: ToyGateway):
    client = SpeechListener(home)

    async def send_slowly(job: Job) -> None:
        async for item in job.stream("codes"):
            for _ in item.data.get("codes", []):
                await job.send("audio", {"rate": RATE}, np.ones(240, np.float32))
                await client.heard.wait()

    await serve_vocoder(home, send_slowly)
    await client.ask()

    assert len(client.parts[0]) == 480
    assert len(b"".join(client.parts)) == 5 * 480
    assert client.complete
    await home.emptied()


class SpeechListener:
    """A client that signals the arrival of each piece."""

    def __init__(self, home: ToyGateway) -> None:
        self._home = home
        self.heard = asyncio.Event()
        self.parts: list[bytes] = []
        self.complete = False

    async def ask(self, **more: Any) -> None:
        body = [json.dumps({**WISH, **more}).encode()]

        async def receive_request() -> Any:
            return {"type": "http.request", "body": body.pop()} if body else await asyncio.Event().wait()

        async def record_part(message: Any) -> None:
            if message["type"] == "http.response.body":
                self.parts += [message["body"]] if message["body"] else []
                self.complete = not message.get("more_body")
                self.heard.set()

        scope = {"type": "http", "method": "POST", "path": SPEECH, "headers": []}
        await self._home.app(scope, receive_request, record_part)


async def serve_vocoder(home: ToyGateway, work: Any) -> None:
    """Serve a speaking model with the vocoder ``work``."""
    home.serve(OMNI)
    await home.executor(OMNI, "Th", "thinker")
    await home.executor(OMNI, "Ta", "talker")
    await home.executor(OMNI, "V", "vocoder", vocoder=work)


@pytest.mark.parametrize("voice", ["Ethan", "alloy", {"id": "Ethan"}])
async def test_voices_are_the_models_own_or_openais(speech_gateway: ToyGateway, voice: Any):
    assert (await post_speech(speech_gateway, voice=voice)).status_code == 200


@pytest.mark.parametrize(
    ("changes", "param"),
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
async def test_what_cannot_be_spoken_is_refused_by_name(
    speech_gateway: ToyGateway, changes: dict[str, Any], param: str
):
    speech_gateway.serve(OMNI, VL)

    response = await post_speech(speech_gateway, **changes)

    assert response.status_code == 400, response.text
    assert read_error_body(response)["param"] == param
    await speech_gateway.emptied()


async def test_a_text_that_the_model_refuses_is_called_the_input(home: ToyGateway):
    async def refuse_input(job: Job) -> None:
        raise BadRequest("the text holds a control token", param="say")

    home.serve(OMNI)
    await home.executor(OMNI, "Th", "thinker", thinker=refuse_input)
    await home.executor(OMNI, "Ta", "talker")
    await home.executor(OMNI, "V", "vocoder")

    response = await post_speech(home)

    assert (response.status_code, read_error_body(response)["param"]) == (400, "input")
    await home.emptied()


async def test_an_unknown_model_is_not_found(speech_gateway: ToyGateway):
    assert (await post_speech(speech_gateway, model="nobody")).status_code == 404


@pytest.mark.parametrize("how", ["audio", "sse"])
async def test_speech_that_breaks_off_is_not_taken_as_whole(home: ToyGateway, how: str):
    client = SpeechListener(home)

    async def break_off(job: Job) -> None:
        await job.send("audio", {"rate": RATE}, np.ones(240, np.float32))
        await client.heard.wait()
        raise RuntimeError("out of breath")

    await serve_vocoder(home, break_off)
    await client.ask(stream_format=how)

    if how == "audio":
        assert (len(client.parts), client.complete) == (1, False)
    else:
        payload = json.loads(client.parts[-1].removeprefix(b"data: "))
        assert (payload["error"]["code"], payload["error"]["stage"]) == ("stage_failed", "vocoder")
    await home.emptied()


async def test_the_official_client_hears_it(speech_gateway: ToyGateway):
    client = openai.AsyncOpenAI(
        base_url="http://gateway/v1", api_key="x", http_client=speech_gateway.http, max_retries=0
    )

    whole = await client.audio.speech.create(model=OMNI, input=TEXT, voice="alloy", response_format="wav")
    async with client.audio.speech.with_streaming_response.create(
        model=OMNI, input=TEXT, voice="alloy", response_format="wav"
    ) as stream_response:
        pieces = [piece async for piece in stream_response.iter_bytes()]

    assert whole.content == b"".join(pieces)
    assert len(decode_audio(whole.content)[0]) == 5 * 240


@pytest.fixture
async def speaking_gateway(home: ToyGateway) -> ToyGateway:
    home.serve(OMNI, **{SPEAKER: catalog.model_declaration("text_to_speech", "")})
    await home.executor(SPEAKER, "T", "speaker")
    await home.executor(SPEAKER, "V", "vocoder", vocoder=play_calls)
    return home


async def post_text(home: ToyGateway, **more: Any) -> httpx.Response:
    wish = {"model": SPEAKER, "input": TEXT, "voice": "anna", "response_format": "pcm", **more}
    return await home.http.post(SPEECH, json=wish, headers={"x-omnibus-path": "T>V"})


async def test_a_text_to_speech_model_gets_text_voice_and_seed(speaking_gateway: ToyGateway):
    response = await post_text(speaking_gateway, seed=40)
    again = await post_text(speaking_gateway, seed=41, voice="ash")

    assert response.status_code == 200, response.text
    samples = read_samples(response.content)
    assert len(samples) == 5 * 240
    assert samples[-1] == pytest.approx(4 / 200 * 32768, abs=1)
    assert samples[0] == pytest.approx(40 / 200 * 32768, abs=1)
    assert read_samples(again.content)[0] == pytest.approx(41 / 200 * 32768, abs=1)
    end_record = await speaking_gateway.ended(response.headers["x-request-id"])
    assert end_record.answer.usage == {"prompt_tokens": 9}
    await speaking_gateway.emptied()


@pytest.mark.parametrize(("voice", "factor"), [("anna", 1.0), ("ash", 2.0)])
async def test_samples_are_only_sped_up_if_the_model_has_not(speaking_gateway: ToyGateway, voice: str, factor: float):
    response = await post_text(speaking_gateway, speed=2.0, voice=voice)

    assert len(read_samples(response.content)) == pytest.approx(5 * 240 / factor, rel=0.2)
    await speaking_gateway.emptied()


@pytest.mark.parametrize(
    "wish", [{"voice": "bert"}, {"instructions": "Whisper."}, {"temperature": 0.5}, {"input": ""}, {"speed": 9.0}]
)
async def test_what_a_text_to_speech_model_cannot_do_is_refused_by_name(speaking_gateway: ToyGateway, wish: Any):
    response = await post_text(speaking_gateway, **wish)

    assert response.status_code == 400, response.text
    assert read_error_body(response)["param"] == next(iter(wish))
    await speaking_gateway.emptied()


async def test_speech_events_end_with_the_usage_of_a_text_to_speech_model(speaking_gateway: ToyGateway):
    response = await post_text(speaking_gateway, stream_format="sse")

    events = [json.loads(block.removeprefix("data: ")) for block in response.text.split("\n\n") if block]
    assert b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert events[-1]["usage"]["input_tokens"] == 9
    await speaking_gateway.emptied()
