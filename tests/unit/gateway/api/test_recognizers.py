"""Transcripts of recognizers: the routes, formats and errors, with executors that echo their input."""

import json
from typing import Any

import httpx
import pytest
from openai.types.audio.transcription_verbose import TranscriptionVerbose
from openai.types.audio.translation_verbose import TranslationVerbose

from omnibus.families import catalog
from omnibus_gateway.openai.transcriptions import format_srt, format_vtt, number_segments
from tests.unit.gateway.house import OMNI, ToyGateway, read_error_body
from tests.unit.gateway.samples import make_sample_sound

TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
RECOGNIZER = "toy-recognizer"
WAV = make_sample_sound("wav", "pcm_s16le", 0.5, 16000)
HEARD = f"heard {4 * (1 + len(WAV) // 1024) * (sum(WAV) % 1000)}"


@pytest.fixture
async def recognizing_gateway(home: ToyGateway) -> ToyGateway:
    home.serve(OMNI, **{RECOGNIZER: catalog.model_declaration("speech_to_text", "")})
    await home.executor(RECOGNIZER, "E", "audio")
    await home.executor(RECOGNIZER, "L", "transcriber")
    return home


async def post_recording(home: ToyGateway, path: str = TRANSCRIPTIONS, **fields: Any) -> httpx.Response:
    data = {"model": RECOGNIZER, **fields}
    return await home.http.post(path, data=data, files={"file": ("a.wav", WAV)}, headers={"x-omnibus-path": "E>L"})


async def test_a_recognizer_gets_the_fields_of_the_form(recognizing_gateway: ToyGateway):
    response = await post_recording(
        recognizing_gateway, language="en", prompt="Lisbon", temperature="0.5", max_tokens="9", seed="3"
    )

    assert response.status_code == 200, response.text
    body = response.json()
    assert body["text"] == f"{HEARD} language=en prompt=Lisbon temperature=0.5 max_tokens=9 seed=3"
    assert body["usage"] == {
        "type": "tokens",
        "input_tokens": 9,
        "output_tokens": 6,
        "total_tokens": 15,
        "input_token_details": {"audio_tokens": 5, "text_tokens": 4},
    }
    assert response.headers["x-omnibus-path"] == "E>L"
    await recognizing_gateway.emptied()


async def test_verbose_transcripts_have_segments(recognizing_gateway: ToyGateway):
    response = await post_recording(
        recognizing_gateway, response_format="verbose_json", **{"timestamp_granularities[]": "segment"}
    )

    body = TranscriptionVerbose.model_validate_json(response.text)
    assert (body.text, body.language, body.duration) == (f"{HEARD} segments=True", "english", 0.5)
    assert [(segment.id, segment.start, segment.end) for segment in body.segments or []] == [
        (0, 0, 0.2),
        (1, 0.25, 0.45),
    ]
    assert body.usage is not None
    assert body.usage.seconds == 1
    await recognizing_gateway.emptied()


async def test_subtitles_have_the_times_of_segments(recognizing_gateway: ToyGateway):
    srt = await post_recording(recognizing_gateway, response_format="srt")
    vtt = await post_recording(recognizing_gateway, response_format="vtt")

    assert srt.headers["content-type"] == vtt.headers["content-type"] == "text/plain; charset=utf-8"
    assert srt.text == (
        f"1\n00:00:00,000 --> 00:00:00,200\n{HEARD}\n\n2\n00:00:00,250 --> 00:00:00,450\nsegments=True\n\n"
    )
    assert vtt.text.startswith(f"WEBVTT\n\n00:00:00.000 --> 00:00:00.200\n{HEARD}\n\n")
    await recognizing_gateway.emptied()


def test_long_times_have_hours_and_no_text_looks_like_a_cue():
    figures = {"avg_logprob": 0, "compression_ratio": 0, "no_speech_prob": 0, "temperature": 0, "seek": 0, "tokens": []}
    segments = number_segments([{"start": 3599.9996, "end": 36000.5, "text": " a --> b", **figures}])

    assert format_srt(segments) == "1\n01:00:00,000 --> 10:00:00,500\na --> b\n\n"
    assert format_vtt(segments) == "WEBVTT\n\n01:00:00.000 --> 10:00:00.500\na -> b\n\n"


async def test_the_stream_ends_with_the_whole_text(recognizing_gateway: ToyGateway):
    response = await post_recording(recognizing_gateway, stream="true", language="en")

    events = [json.loads(block.removeprefix("data: ")) for block in response.text.split("\n\n") if block]
    assert {event["type"] for event in events[:-1]} == {"transcript.text.delta"}
    assert "".join(event["delta"] for event in events[:-1]) == events[-1]["text"] == f"{HEARD} language=en"
    assert events[-1]["type"] == "transcript.text.done"
    assert events[-1]["usage"]["output_tokens"] == 2
    await recognizing_gateway.emptied()


async def test_a_translation_is_english_text(recognizing_gateway: ToyGateway):
    plain = await post_recording(recognizing_gateway, TRANSLATIONS)
    verbose = await post_recording(recognizing_gateway, TRANSLATIONS, response_format="verbose_json")

    assert plain.json() == {"text": f"{HEARD} translate=True"}
    body = TranslationVerbose.model_validate_json(verbose.text)
    assert (body.language, len(body.segments or [])) == ("english", 3)
    await recognizing_gateway.emptied()


async def test_a_model_that_chats_translates_as_well(home: ToyGateway):
    await home.all_of(OMNI)

    response = await home.http.post(TRANSLATIONS, data={"model": OMNI}, files={"file": ("a.wav", WAV)})

    assert response.json()["text"].startswith("You said Translate the speech in the audio into English.")
    await home.emptied()


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (TRANSCRIPTIONS, {"timestamp_granularities[]": "segment"}, "timestamp_granularities"),
        (
            TRANSCRIPTIONS,
            {"timestamp_granularities[]": "word", "response_format": "verbose_json"},
            "timestamp_granularities",
        ),
        (TRANSCRIPTIONS, {"response_format": "diarized_json"}, "response_format"),
        (TRANSCRIPTIONS, {"stream": "true", "response_format": "srt"}, "response_format"),
        (TRANSCRIPTIONS, {"language": "xx"}, "language"),
        (TRANSLATIONS, {"language": "en"}, "language"),
        (TRANSLATIONS, {"stream": "true"}, "stream"),
        (TRANSLATIONS, {"temperature": "2"}, "temperature"),
    ],
)
async def test_values_that_a_recognizer_cannot_obey_are_refused_by_name(
    recognizing_gateway: ToyGateway, path: str, fields: dict[str, str], param: str
):
    response = await post_recording(recognizing_gateway, path, **fields)

    assert response.status_code == 400, response.text
    assert read_error_body(response)["param"] == param
    await recognizing_gateway.emptied()


async def test_a_recognizer_does_not_chat_and_says_what_it_does(recognizing_gateway: ToyGateway):
    chat = await recognizing_gateway.ask(RECOGNIZER)
    model = (await recognizing_gateway.http.get(f"/v1/models/{RECOGNIZER}")).json()

    assert chat.status_code == 400
    assert read_error_body(chat)["param"] == "model"
    assert (model["input_modalities"], model["output_modalities"]) == (["audio"], ["transcript"])
