"""Transcription: a form with a file becomes a chat, with executors that echo their input."""

import json
from typing import Any

import httpx
import openai
import pytest

from omnibus.errors import BadRequest
from omnibus.executor.runner import Job
from tests.unit.gateway.house import OMNI, VL, ToyGateway, read_error_body
from tests.unit.gateway.samples import make_sample_picture, make_sample_sound

PATH = "/v1/audio/transcriptions"
WAV = make_sample_sound("wav", "pcm_s16le", 0.5, 16000)
HEARD = 4 * (1 + len(WAV) // 1024) * (sum(WAV) % 1000)  # the toy encoder's output


@pytest.fixture
async def transcription_gateway(home: ToyGateway) -> ToyGateway:
    await home.all_of(OMNI)
    return home


async def post_transcription(home: ToyGateway, file: bytes = WAV, **more: Any) -> httpx.Response:
    fields = {"model": OMNI, "seed": "5", **more}
    return await home.http.post(PATH, data=fields, files={"file": ("a.wav", file)})


USER = "Transcribe the audio into text. Write what is said, and nothing else."


async def test_the_answer_is_what_the_model_writes_of_the_sound(transcription_gateway: ToyGateway):
    response = await post_transcription(transcription_gateway)

    assert response.status_code == 200, response.text
    assert response.json()["text"] == f"You said {USER} saw {HEARD} [5] "
    assert response.json()["usage"] == {
        "type": "tokens",
        "input_tokens": 6,
        "output_tokens": 16,
        "total_tokens": 22,
        "input_token_details": {"audio_tokens": 0, "text_tokens": 6},
    }
    await transcription_gateway.emptied()


async def test_language_and_subject_are_passed_on(transcription_gateway: ToyGateway):
    response = await post_transcription(transcription_gateway, language="pt-BR", prompt="Lisbon in spring")

    assert f"{USER} Its language is pt-BR. It continues, or is about: Lisbon in spring saw" in response.json()["text"]


async def test_it_is_greedy_unless_a_temperature_is_wanted(home: ToyGateway):
    recorded_inputs: list[Any] = []

    async def record_inputs(job: Job) -> None:
        recorded_inputs.append((job.inputs["params"]["temperature"], await job.value("messages")))
        job.close("text", {"finish_reason": "stop", "usage": {}})

    home.serve(OMNI)
    await home.executor(OMNI, "Th", "thinker", thinker=record_inputs)
    await home.executor(OMNI, "EA", "audio")

    await post_transcription(home)
    await post_transcription(home, temperature="0.7")

    assert [temperature for temperature, _ in recorded_inputs] == [0.0, 0.7]
    assert recorded_inputs[0][1][0] == {"role": "system", "content": "You are a speech recognition model."}
    await home.emptied()


async def test_the_text_alone_can_be_asked_for(transcription_gateway: ToyGateway):
    response = await post_transcription(transcription_gateway, response_format="text")

    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.text == (await post_transcription(transcription_gateway)).json()["text"]


async def test_a_verbose_answer_knows_how_long_the_sound_is(transcription_gateway: ToyGateway):
    body = (await post_transcription(transcription_gateway, response_format="verbose_json", language="en")).json()

    assert (body["task"], body["language"], body["duration"]) == ("transcribe", "en", 0.5)
    assert body["usage"] == {"type": "duration", "seconds": 1}


async def test_a_stream_has_the_text_piece_by_piece_and_whole(transcription_gateway: ToyGateway):
    whole = (await post_transcription(transcription_gateway)).json()

    response = await post_transcription(transcription_gateway, stream="true")

    *deltas, end_event = [json.loads(block[6:]) for block in response.text.split("\n\n") if block]
    assert {each["type"] for each in deltas} == {"transcript.text.delta"}
    assert len(deltas) > 1
    assert "".join(each["delta"] for each in deltas) == end_event["text"] == whole["text"]
    assert (end_event["type"], end_event["usage"]) == ("transcript.text.done", whole["usage"])
    await transcription_gateway.emptied()


@pytest.mark.parametrize(
    ("changes", "param"),
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
async def test_what_cannot_be_obeyed_is_refused_by_name(
    transcription_gateway: ToyGateway, changes: dict[str, str], param: str
):
    transcription_gateway.serve(OMNI, VL)

    response = await post_transcription(transcription_gateway, **changes)

    assert response.status_code == 400, response.text
    assert read_error_body(response)["param"] == param
    await transcription_gateway.emptied()


@pytest.mark.parametrize("file", [b"", b"noise", WAV[:30], make_sample_picture("PNG")])
async def test_files_that_are_no_sound_are_refused(transcription_gateway: ToyGateway, file: bytes):
    response = await post_transcription(transcription_gateway, file)

    assert (response.status_code, read_error_body(response)["param"]) == (400, "file")


async def test_too_long_a_sound_is_refused_before_anything_decodes_it(transcription_gateway: ToyGateway):
    lasting = WAV[:40] + (16000 * 2 * 7200).to_bytes(4, "little") + WAV[44:]

    response = await post_transcription(transcription_gateway, lasting)

    assert response.status_code in (400, 413)
    assert read_error_body(response)["param"] == "file"


async def test_without_a_file_or_with_several_there_is_nothing_to_hear(transcription_gateway: ToyGateway):
    none = await transcription_gateway.http.post(PATH, data={"model": OMNI}, files={"image": WAV})
    two = await transcription_gateway.http.post(PATH, data={"model": OMNI}, files=[("file", WAV), ("file", WAV)])

    assert (none.status_code, read_error_body(none)["param"]) == (400, "image")
    assert (two.status_code, read_error_body(two)["param"]) == (400, "file")


async def test_what_an_encoder_refuses_is_called_the_file(home: ToyGateway):
    async def refuse_audio(job: Job) -> None:
        raise BadRequest("the audio is shorter than 30 ms")

    home.serve(OMNI)
    await home.executor(OMNI, "Th", "thinker")
    await home.executor(OMNI, "EA", "audio", audio=refuse_audio)

    response = await post_transcription(home)

    assert (response.status_code, read_error_body(response)["param"]) == (400, "file")
    await home.emptied()


async def test_the_official_client_reads_every_form(transcription_gateway: ToyGateway):
    client = openai.AsyncOpenAI(
        base_url="http://gateway/v1", api_key="x", http_client=transcription_gateway.http, max_retries=0
    )
    arguments: dict[str, Any] = {"model": OMNI, "file": ("a.wav", WAV), "extra_body": {"seed": 5}}

    plain = await client.audio.transcriptions.create(**arguments)
    text = await client.audio.transcriptions.create(**arguments, response_format="text")
    verbose = await client.audio.transcriptions.create(**arguments, response_format="verbose_json")
    stream: Any = await client.audio.transcriptions.create(**arguments, stream=True)
    events = [event async for event in stream]

    assert plain.text == text == verbose.text == events[-1].text
    assert verbose.duration == 0.5
    assert "".join(event.delta for event in events[:-1]) == plain.text


RECORDINGS = {
    "webm of a browser": make_sample_sound("webm", "libopus", 3.0, live="1"),
    "webm of a pipe": make_sample_sound("webm", "libopus", 3.0, piped=True),
    "flac of a pipe": make_sample_sound("flac", "flac", 3.0, piped=True),
    "matroska of a pipe": make_sample_sound("matroska", "aac", 3.0, piped=True),
    "mp4 in fragments": make_sample_sound("mp4", "aac", 3.0, piped=True, movflags="frag_keyframe+empty_moov"),
    "mp3 without a count": make_sample_sound("mp3", "libmp3lame", 3.0, write_xing="0"),
    "mp3 with a count": make_sample_sound("mp3", "libmp3lame", 3.0),
    "aac": make_sample_sound("adts", "aac", 3.0),
    "wav of a pipe": make_sample_sound("wav", "pcm_s16le", 3.0, piped=True),
    "ogg": make_sample_sound("ogg", "libopus", 3.0),
}


@pytest.mark.parametrize("recording", RECORDINGS)
async def test_the_length_is_that_of_the_samples_where_no_header_has_it(
    transcription_gateway: ToyGateway, recording: str
):
    body = (
        await post_transcription(transcription_gateway, RECORDINGS[recording], response_format="verbose_json")
    ).json()

    assert body["duration"] == pytest.approx(3.0, abs=0.08)
    assert body["usage"]["seconds"] in (3, 4)
    await transcription_gateway.emptied()
