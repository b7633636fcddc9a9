"""A trained recognizer of English: parameters of a transcription, and recordings that it cannot use."""

import msgspec
import numpy as np
import pytest

from omnibus.errors import BadMedia, BadRequest
from omnibus_real import RecognizeSpeech, SpeakText
from tests.unit.real.calls import call_in_vain, call_task, parts_of, to_file

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("trained weights")]


async def test_words_have_times_and_params_may_be_json(speaker: SpeakText, recognizer: RecognizeSpeech):
    speech = await call_task(speaker, text="We drink coffee at ten thirty.", chunks=None)
    file = to_file(speech.outputs["audio"].items[0].array, 22_050)

    result = await call_task(recognizer, media=file, params=msgspec.Raw(b'{"words": true, "language": "en"}'))

    words = [word for part in parts_of(result, "text") for word in part["words"]]
    assert [word["word"] for word in words][:4] == ["We", "drink", "coffee", "at"]
    assert all(word["start"] < word["end"] for word in words)
    assert [part["segments"] for part in parts_of(result, "text")] == [[], []]


async def test_silence_has_an_empty_transcript(recognizer: RecognizeSpeech):
    result = await call_task(recognizer, media=to_file(np.zeros(16_000, np.float32), 16_000))

    [end] = parts_of(result, "text")
    assert (end["text"], end["seconds"], end["usage"]) == ("", 1.0, {"completion_tokens": 0})


@pytest.mark.parametrize("params", [{"language": "de"}, {"translate": True}, {"temperature": 3}, {"beams": 2}])
async def test_other_languages_and_parameters_are_rejected(recognizer: RecognizeSpeech, params: dict):
    file = to_file(np.zeros(16_000, np.float32), 16_000)

    error = await call_in_vain(recognizer, media=file, params=params)

    assert isinstance(error, BadRequest)


@pytest.mark.parametrize("file", [np.zeros(0, np.uint8), to_file(np.zeros(0, np.float32), 16_000)])
async def test_a_file_without_audio_is_rejected(recognizer: RecognizeSpeech, file: np.ndarray):
    assert isinstance(await call_in_vain(recognizer, media=file), BadMedia)
