"""Invalid audio and voices cause a 4xx, and executors keep running."""

import base64
from typing import Any

import pytest

from tests.e2e.omni.speech import make_speech_body
from tests.e2e.questions import make_question
from tests.e2e.system import OMNI, System
from tests.unit.models import files

pytestmark = pytest.mark.e2e

WAV = files.make_tone(1.0)
SOUND = "messages[0].content[0].input_audio.data"
#: Samples, how the client calls their format, and the error's code, param and a part of its message.
SOUNDS: dict[str, tuple[bytes, str, str, str | None, str]] = {
    "no sound": (b"hello" * 50, "wav", "bad_media", SOUND, "audio"),
    "a picture": (files.make_picture(1), "wav", "bad_media", SOUND, "audio"),
    "WAV called MP3": (WAV, "mp3", "bad_media", SOUND, "audio/wav"),
    "a header without samples": (WAV[:44], "wav", "bad_media", None, "audio"),
    "half a file": (WAV[: len(WAV) // 2], "wav", "bad_media", None, "truncated"),
    "damaged FLAC": (files.encode_tone(1.0, "flac", "flac")[:200], "flac", "bad_media", None, "audio"),
    "longer than the model listens": (files.make_tone(31.0, rate=8000), "wav", "too_large", None, "seconds"),
    "an unknown format": (WAV, "midi", "bad_request", "messages[0].content[0].input_audio.format", "midi"),
}


def make_messages(data: bytes, format: str) -> list[Any]:
    sound = {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": format}}
    return [{"role": "user", "content": [sound, {"type": "text", "text": "what do you hear?"}]}]


async def read_refusal(omni: System, everybody: dict[str, int], body: dict[str, Any]) -> dict[str, Any]:
    """The error of ``body``; another request is served by the same processes afterwards."""
    async with omni.http() as http:
        answer = await http.post("/v1/chat/completions", json=body)
        fine = await http.post("/v1/chat/completions", json=make_speech_body(make_question("hello")))

    assert answer.status_code in (400, 413), answer.text
    assert fine.status_code == 200
    assert await omni.whole() == everybody
    await omni.ledger_is_empty()
    error: dict[str, Any] = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert "request_id" in error
    return error


@pytest.mark.parametrize("name", SOUNDS)
async def test_a_wrong_sound_is_refused(omni: System, everybody: dict[str, int], name: str):
    data, format, code, param, says = SOUNDS[name]

    error = await read_refusal(
        omni, everybody, {"model": OMNI, "messages": make_messages(data, format), "max_tokens": 4}
    )

    assert error["code"] == code
    assert says in error["message"]
    assert error["param"] == param or param is None


async def test_an_unknown_voice_is_refused_and_the_voices_are_named(omni: System, everybody: dict[str, int]):
    body = make_speech_body(make_question("hello"), audio={"voice": "Nobody", "format": "wav"})

    error = await read_refusal(omni, everybody, body)

    assert (error["code"], error["param"]) == ("bad_request", "audio.voice")
    assert "Chelsie" in error["message"]
    assert "Ethan" in error["message"]


async def test_speech_without_a_voice_is_refused(omni: System, everybody: dict[str, int]):
    body = make_speech_body(make_question("hello"))
    del body["audio"]

    assert (await read_refusal(omni, everybody, body))["param"] == "audio"
