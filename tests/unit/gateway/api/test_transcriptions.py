"""Transcription: a form with a file becomes a chat, with executors that echo their input."""

import json
from typing import Any

import httpx
import openai
import pytest

from omnibus.errors import BadRequest
from omnibus.executor.runner import Job
from tests.unit.gateway.house import OMNI, VL, House, error
from tests.unit.gateway.samples import picture, sound

PATH = "/v1/audio/transcriptions"
WAV = sound("wav", "pcm_s16le", 0.5, 16000)
HEARD = 4 * (1 + len(WAV) // 1024) * (sum(WAV) % 1000)  # the toy encoder's output


@pytest.fixture
async def studio(home: House) -> House:
    await home.all_of(OMNI)
    return home


async def transcribe(home: House, file: bytes = WAV, **more: Any) -> httpx.Response:
    fields = {"model": OMNI, "seed": "5", **more}
    return await home.http.post(PATH, data=fields, files={"file": ("a.wav", file)})


USER = "Transcribe the audio into text. Write what is said, and nothing else."


async def test_the_answer_is_what_the_model_writes_of_the_sound(studio: House):
    response = await transcribe(studio)

    assert response.status_code == 200, response.text
    assert response.json()["text"] == f"You said {USER} saw {HEARD} [5] "
    assert response.json()["usage"] == {
        "type": "tokens",
        "input_tokens": 6,
        "output_tokens": 16,
        "total_tokens": 22,
        "input_token_details": {"audio_tokens": 0, "text_tokens": 6},
    }
    await studio.emptied()


async def test_language_and_subject_are_passed_on(studio: House):
    response = await transcribe(studio, language="pt-BR", prompt="Lisbon in spring")

    assert f"{USER} Its language is pt-BR. It continues, or is about: Lisbon in spring saw" in response.json()["text"]


async def test_it_is_greedy_unless_a_temperature_is_wanted(home: House):
    told: list[Any] = []

    async def listen(job: Job) -> None:
        told.append((job.inputs["params"]["temperature"], await job.value("messages")))
        job.close("text", {"finish_reason": "stop", "usage": {}})

    home.serve(OMNI)
    await home.executor(OMNI, "Th", "thinker", thinker=listen)
    await home.executor(OMNI, "EA", "audio")

    await transcribe(home)
    await transcribe(home, temperature="0.7")

    assert [temperature for temperature, _ in told] == [0.0, 0.7]
    assert told[0][1][0] == {"role": "system", "content": "You are a speech recognition model."}
    await home.emptied()


async def test_the_text_alone_can_be_asked_for(studio: House):
    response = await transcribe(studio, response_format="text")

    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.text == (await transcribe(studio)).json()["text"]


async def test_a_verbose_answer_knows_how_long_the_sound_is(studio: House):
    body = (await transcribe(studio, response_format="verbose_json", language="en")).json()

    assert (body["task"], body["language"], body["duration"]) == ("transcribe", "en", 0.5)
    assert body["usage"] == {"type": "duration", "seconds": 1}


async def test_a_stream_has_the_text_piece_by_piece_and_whole(studio: House):
    whole = (await transcribe(studio)).json()

    response = await transcribe(studio, stream="true")

    *deltas, done = [json.loads(block[6:]) for block in response.text.split("\n\n") if block]
    assert {each["type"] for each in deltas} == {"transcript.text.delta"}
    assert len(deltas) > 1
    assert "".join(each["delta"] for each in deltas) == done["text"] == whole["text"]
    assert (done["type"], done["usage"]) == ("transcript.text.done", whole["usage"])
    await studio.emptied()


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"model": ""}, "model"),
        ({"model": VL}, "model"),
        ({"response_format": "srt"}, "response_format"),
        ({"response_format": "xml"}, "response_format"),
        ({"response_format": "text", "stream": "true"}, "response_format"),
        ({"language": "everything there is"}, "language"),
        ({"temperature": "2"}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities"),
        ({"include[]": "logprobs"}, "include"),
        ({"chunking_strategy": '{"type":"server_vad"}'}, "chunking_strategy"),
        ({"known_speaker_names[]": "Ann"}, "known_speaker_names"),
        ({"diarize": "yes"}, "diarize"),
    ],
)
async def test_what_cannot_be_obeyed_is_refused_by_name(studio: House, changed: dict[str, str], param: str):
    studio.serve(OMNI, VL)

    response = await transcribe(studio, **changed)

    assert response.status_code == 400, response.text
    assert error(response)["param"] == param
    await studio.emptied()


@pytest.mark.parametrize("file", [b"", b"noise", WAV[:30], picture("PNG")])
async def test_files_that_are_no_sound_are_refused(studio: House, file: bytes):
    response = await transcribe(studio, file)

    assert (response.status_code, error(response)["param"]) == (400, "file")


async def test_too_long_a_sound_is_refused_before_anything_decodes_it(studio: House):
    lasting = WAV[:40] + (16000 * 2 * 7200).to_bytes(4, "little") + WAV[44:]

    response = await transcribe(studio, lasting)

    assert response.status_code in (400, 413)
    assert error(response)["param"] == "file"


async def test_without_a_file_or_with_several_there_is_nothing_to_hear(studio: House):
    none = await studio.http.post(PATH, data={"model": OMNI}, files={"image": WAV})
    two = await studio.http.post(PATH, data={"model": OMNI}, files=[("file", WAV), ("file", WAV)])

    assert (none.status_code, error(none)["param"]) == (400, "image")
    assert (two.status_code, error(two)["param"]) == (400, "file")


async def test_what_an_encoder_refuses_is_called_the_file(home: House):
    async def refuse(job: Job) -> None:
        raise BadRequest("the audio is shorter than 30 ms")

    home.serve(OMNI)
    await home.executor(OMNI, "Th", "thinker")
    await home.executor(OMNI, "EA", "audio", audio=refuse)

    response = await transcribe(home)

    assert (response.status_code, error(response)["param"]) == (400, "file")
    await home.emptied()


async def test_the_official_client_reads_every_form(studio: House):
    client = openai.AsyncOpenAI(base_url="http://gateway/v1", api_key="x", http_client=studio.http, max_retries=0)
    asked: dict[str, Any] = {"model": OMNI, "file": ("a.wav", WAV), "extra_body": {"seed": 5}}

    plain = await client.audio.transcriptions.create(**asked)
    text = await client.audio.transcriptions.create(**asked, response_format="text")
    verbose = await client.audio.transcriptions.create(**asked, response_format="verbose_json")
    stream: Any = await client.audio.transcriptions.create(**asked, stream=True)
    events = [event async for event in stream]

    assert plain.text == text == verbose.text == events[-1].text
    assert verbose.duration == 0.5
    assert "".join(event.delta for event in events[:-1]) == plain.text


RECORDINGS = {
    "webm of a browser": sound("webm", "libopus", 3.0, live="1"),
    "webm of a pipe": sound("webm", "libopus", 3.0, piped=True),
    "flac of a pipe": sound("flac", "flac", 3.0, piped=True),
    "matroska of a pipe": sound("matroska", "aac", 3.0, piped=True),
    "mp4 in fragments": sound("mp4", "aac", 3.0, piped=True, movflags="frag_keyframe+empty_moov"),
    "mp3 without a count": sound("mp3", "libmp3lame", 3.0, write_xing="0"),
    "mp3 with a count": sound("mp3", "libmp3lame", 3.0),
    "aac": sound("adts", "aac", 3.0),
    "wav of a pipe": sound("wav", "pcm_s16le", 3.0, piped=True),
    "ogg": sound("ogg", "libopus", 3.0),
}


@pytest.mark.parametrize("recording", RECORDINGS)
async def test_the_length_is_that_of_the_samples_where_no_header_has_it(studio: House, recording: str):
    body = (await transcribe(studio, RECORDINGS[recording], response_format="verbose_json")).json()

    assert body["duration"] == pytest.approx(3.0, abs=0.08)
    assert body["usage"]["seconds"] in (3, 4)
    await studio.emptied()
