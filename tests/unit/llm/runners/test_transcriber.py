"""A recognizer's encoder and decoder write what the library's ``generate`` writes of each window."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from omnibus.errors import BadMedia, BadRequest
from omnibus.executor.runner import Item, Runner
from omnibus_models import tiny
from tests.unit.encoder.test_sentence_runner import run_component
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.runners.recognition import (
    LibraryWindow,
    align_by_library,
    make_speech,
    transcribe_by_library,
    write_wav,
)

LONG, SPEECH = make_speech(5.3), make_speech(3.6)
#: Options of a transcript, and those of the library.
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "language": ({"language": "English"}, {"language": "en"}),
    "detected": ({}, {}),
    "prompt": ({"language": "fr", "prompt": "the small cat"}, {"language": "fr", "prompt": "the small cat"}),
    "translation": ({"language": "de", "translate": True}, {"language": "de", "task": "translate"}),
    "segments": ({"language": "de", "segments": True}, {"language": "de", "timestamps": True}),
}


class Recognizer(NamedTuple):
    """The runners of both components."""

    checkpoint: Path
    encoder: Runner
    decoder: Runner

    async def encode(self, samples: np.ndarray) -> Item:
        file = Item({"modality": "audio"}, np.frombuffer(write_wav(samples), np.uint8))
        job = await finish_job(self.encoder, MemoryJob({"media": file}, wants=("embedding",)))
        return job.outputs["embedding"].items[0]

    async def transcribe(self, audio: Item, **params: Any) -> MemoryJob:
        return await finish_job(self.decoder, MemoryJob({"audio": audio, "params": params}, wants=("text",)))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("speech_to_text", tmp_path_factory.mktemp("checkpoint") / "whisper")


@pytest.fixture
async def recognizer(checkpoint: Path) -> AsyncIterator[Recognizer]:
    async with AsyncExitStack() as stack:
        parts = ("audio", "transcriber")
        runners = [await stack.enter_async_context(run_component(part, "speech_to_text", checkpoint)) for part in parts]
        yield Recognizer(checkpoint, *runners)


def read_segments(job: MemoryJob) -> list[dict[str, Any]]:
    return [segment for item in job.outputs["text"].items for segment in item.data.get("segments", [])]


def join_windows(windows: list[LibraryWindow]) -> str:
    return "".join(window.text for window in windows).lstrip()


@pytest.mark.numeric
async def test_texts_are_those_of_the_library(recognizer: Recognizer):
    audio = await recognizer.encode(SPEECH)

    jobs = await asyncio.gather(*(recognizer.transcribe(audio, **params) for params, _ in OPTIONS.values()))

    texts = set()
    for job, (_, options) in zip(jobs, OPTIONS.values(), strict=True):
        expected = transcribe_by_library(recognizer.checkpoint, SPEECH, **options)
        assert len(expected) > 1
        assert job.text == join_windows(expected)
        texts.add(job.text)
    assert len(texts) == len(OPTIONS)  # each option matters
    counts = jobs[0].end("text")
    assert counts["usage"]["audio_tokens"] == len(audio.array)
    assert counts["seconds"] == pytest.approx(3.6)
    assert (counts["language"], jobs[1].end("text")["language"]) == ("english", "german")


@pytest.mark.numeric
async def test_segments_have_the_tokens_and_times_of_the_library(recognizer: Recognizer):
    audio = await recognizer.encode(LONG)
    [expected, job] = [
        transcribe_by_library(recognizer.checkpoint, LONG, language="de", timestamps=True),
        await recognizer.transcribe(audio, language="de", segments=True),
    ]

    segments = read_segments(job)
    model: Any = recognizer.decoder.model  # type: ignore[attr-defined]
    assert [token for segment in segments for token in segment["tokens"]] == [
        token for window in expected for token in window.ids if model.is_text(token)
    ]
    assert len(segments) > len(expected)
    times = [(segment["start"], segment["end"]) for segment in segments]
    assert all(begin <= end for begin, end in times)
    assert times == sorted(times)
    for window, (_, end, _) in zip(expected, audio.data["windows"], strict=True):
        own = [segment for segment in segments if segment["seek"] == round(window.begin * 100)]
        assert own
        assert all(window.begin <= segment["start"] <= segment["end"] <= round(end, 3) for segment in own)
    assert "".join(segment["text"] for segment in segments).lstrip() == job.text


@pytest.mark.numeric
async def test_words_have_the_times_of_the_library(recognizer: Recognizer):
    job = await recognizer.transcribe(await recognizer.encode(LONG), language="de", words=True)

    words = [word for item in job.outputs["text"].items for word in item.data.get("words", [])]
    expected = align_by_library(recognizer.checkpoint, LONG, "de")
    assert [word["word"] for word in words] == [text for text, _, _ in expected]
    assert len(words) > 10
    for word, (_, begin, end) in zip(words, expected, strict=True):
        assert (word["start"], word["end"]) == (pytest.approx(begin, abs=0.011), pytest.approx(end, abs=0.011))
    assert len({word["start"] for word in words}) > 5


async def test_windows_divide_the_recording(recognizer: Recognizer):
    audio = await recognizer.encode(LONG)
    short = await recognizer.encode(LONG[:16000])

    windows = audio.data["windows"]
    assert [begin for begin, _, _ in windows[1:]] == [end for _, end, _ in windows[:-1]]
    assert (windows[0][0], windows[-1][1]) == (0.0, len(LONG) / 16000)
    assert sum(rows for _, _, rows in windows) == len(audio.array)
    assert [window[:2] for window in short.data["windows"]] == [[0.0, 1.0]]


@pytest.mark.parametrize(
    ("params", "param"),
    [({"language": "xx"}, "language"), ({"prompt": "<|endoftext|>"}, "prompt"), ({"temperature": 3.0}, "temperature")],
)
async def test_options_that_a_model_lacks_are_refused_by_name(
    recognizer: Recognizer, params: dict[str, Any], param: str
):
    audio = await recognizer.encode(LONG[:16000])

    with pytest.raises(BadRequest) as raised:
        await recognizer.transcribe(audio, **params)

    assert raised.value.param == param


async def test_other_files_and_rows_are_refused(recognizer: Recognizer):
    with pytest.raises(BadRequest):
        await recognizer.transcribe(Item({"windows": [[0.0, 1.0, 5]]}, np.zeros((4, 32), np.float32)))
    with pytest.raises(BadMedia):
        await recognizer.encode(LONG[:0])


async def test_a_sampled_text_depends_on_its_seed(recognizer: Recognizer):
    audio = await recognizer.encode(LONG[:16000])

    texts = [(await recognizer.transcribe(audio, temperature=1.0, seed=seed)).text for seed in (1, 1, 2)]

    assert texts[0] == texts[1] != texts[2]
