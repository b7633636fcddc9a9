"""An app that is a model for transcriptions, speech and embeddings, without weights: ``examples/morse.py``."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import openai
import pytest

from tests.e2e.apps.estate import AppSystem

pytestmark = pytest.mark.e2e

MORSE = "morse"


async def speak_text(client: openai.AsyncOpenAI, text: str, voice: str = "low", **more: object) -> bytes:
    response = await client.audio.speech.create(model=MORSE, input=text, voice=voice, response_format="wav", **more)  # type: ignore[arg-type]
    return response.content


@pytest.mark.parametrize("voice", ["high", "low", "alloy"])
async def test_what_it_speaks_it_understands(twin_models: AppSystem, voice: str):
    async with twin_models.system.client() as client:
        sound = await speak_text(client, "hello world", voice)
        transcript = await client.audio.transcriptions.create(model=MORSE, file=("hello.wav", sound))

    assert transcript.text == "hello world"


async def test_a_speed_changes_the_length(twin_models: AppSystem):
    async with twin_models.system.client() as client:
        usual, fast = [len(await speak_text(client, "sos", speed=speed)) for speed in (1.0, 2.0)]

    assert fast == pytest.approx(usual / 2, rel=0.1)


async def test_a_transcript_has_segments_subtitles_and_a_stream(twin_models: AppSystem):
    async with twin_models.system.client() as client:
        file = ("sos.wav", await speak_text(client, "sos"))
        verbose = await client.audio.transcriptions.create(model=MORSE, file=file, response_format="verbose_json")
        subtitles = await client.audio.transcriptions.create(model=MORSE, file=file, response_format="srt")
        stream = await client.audio.transcriptions.create(model=MORSE, file=file, stream=True)
        events = [event async for event in stream]

    assert verbose.segments is not None
    assert [segment.text for segment in verbose.segments] == ["sos"]
    assert verbose.duration == pytest.approx(verbose.segments[0].end, abs=0.01)
    assert str(subtitles).splitlines()[2] == "sos"
    assert [event.type for event in events] == ["transcript.text.delta", "transcript.text.done"]


async def test_a_session_by_voice_is_transcribed_by_it(twin_models: AppSystem):
    async with twin_models.system.client() as client:
        response = await client.audio.speech.create(model=MORSE, input="sos", voice="low", response_format="pcm")
        samples = np.frombuffer(response.content, "<i2").repeat(3)  # 24,000 in a second
        async with client.realtime.connect(extra_query={"intent": "transcription"}) as session:
            await session.session.update(
                session={"type": "transcription", "audio": {"input": {"transcription": {"model": MORSE}, "turn_detection": None}}}
            )  # fmt: skip
            await session.input_audio_buffer.append(audio=base64.b64encode(samples.tobytes()).decode())
            await session.input_audio_buffer.commit()
            async with asyncio.timeout(30):
                events = [event async for event in until_transcribed(session)]

    assert events[-1].type == "conversation.item.input_audio_transcription.completed", events
    assert events[-1].transcript == "sos"


async def until_transcribed(session: Any) -> AsyncIterator[Any]:
    async for event in session:
        yield event
        if event.type.startswith("conversation.item.input_audio_transcription.") and not event.type.endswith("delta"):
            return


async def test_its_embeddings_are_rows_of_the_texts(twin_models: AppSystem):
    async with twin_models.system.client() as client:
        response = await client.embeddings.create(model=MORSE, input=["listen", "silent", "stone"])

    listen, silent, stone = (np.array(each.embedding) for each in response.data)
    assert listen @ silent == pytest.approx(1.0)
    assert 0 < listen @ stone < 0.9
    assert response.usage.total_tokens == len("listensilentstone")


async def test_it_is_listed_with_what_it_takes_and_makes(twin_models: AppSystem):
    model = next(each for each in (await twin_models.ask("GET", "/v1/models")).json()["data"] if each["id"] == MORSE)

    assert model["voices"] == ["high", "low"]
    assert model["input_modalities"] == ["audio", "text"]
    assert model["output_modalities"] == ["transcript", "audio", "embedding"]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("audio/speech", {"input": "a", "voice": "bob"}, "unknown voice 'bob': use one of high, low"),
        ("audio/speech", {"input": "a", "voice": "low", "instructions": "sing"}, "morse follows no instructions"),
        ("embeddings", {"input": [1, 2]}, "send texts, not tokens"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}]}, "serves transcriptions, speech, embeddings, not chat"),
        ("apps/morse/invoke", {}, "the app morse has no `serve`: call its model morse"),
    ],
)  # fmt: skip
async def test_what_it_cannot_do_is_a_clear_error(
    twin_models: AppSystem, path: str, body: dict[str, object], message: str
):
    named = body if path.startswith("apps") else {"model": MORSE, **body}

    answer = await twin_models.ask("POST", f"/v1/{path}", named)

    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]


async def test_its_requests_are_recorded_and_replayed_by_a_new_version(twin_models: AppSystem):
    before = await twin_models.show(MORSE)
    async with twin_models.system.client() as client:
        sound = await speak_text(client, "one more time")
        await client.audio.transcriptions.create(model=MORSE, file=("a.wav", sound))
        await client.embeddings.create(model=MORSE, input="one")

    code, output = twin_models.run_cli("app", "update", MORSE, "--canary", "3", "--json")

    assert code == 0, output
    report = json.loads(output)
    assert before is not None
    assert report["version"] == before["version"] + 1
    assert [call["outcome"] for call in report["canary"]["calls"]] == ["same"] * 3
