"""A trained voice speaks English: a trained recognizer understands it, sentence by sentence."""

import asyncio
import re

import numpy as np
import pytest

from omnibus.errors import BadRequest, TooLarge
from omnibus.task.execute import execute_task
from omnibus.tensors.handle import Item
from omnibus_real import RecognizeSpeech, SpeakText
from omnibus_real.pronunciation import Pronunciation
from omnibus_real.spoken_text import spell_out
from tests.unit.jobs import MemoryJob, MemoryPipe
from tests.unit.real.calls import call_in_vain, call_task, parts_of, to_file

pytestmark = [pytest.mark.real, pytest.mark.xdist_group("trained weights")]

RATE = 22_050
TEXT = (
    "The total of your receipt is $7.20, including 19% tax. In 1999 the company had 1,250 employees in 12 countries. "
    "Dr. Smith lives at 42 Baker Street, next to the old church. The children's playground was closed because of rain."
)


def words_of(text: str) -> list[str]:
    return re.findall("[a-z']+", spell_out(text).lower())


def count_edits(words: list[str], reference: list[str]) -> int:
    """Return the Levenshtein distance of two texts in words."""
    row = list(range(len(reference) + 1))
    for i, word in enumerate(words, 1):
        before, row[0] = row.copy(), i
        for j, other in enumerate(reference, 1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (word != other))
    return row[-1]


async def speak_text(speaker: SpeakText, text: str) -> list[np.ndarray]:
    job = await call_task(speaker, text=text, chunks=None)
    assert {each["rate"] for each in parts_of(job, "audio")} == {RATE}
    return [item.array for item in job.outputs["audio"].items]


async def test_a_recognizer_writes_what_the_voice_speaks(speaker: SpeakText, recognizer: RecognizeSpeech):
    sentences = await speak_text(speaker, TEXT)
    result = await call_task(recognizer, media=to_file(np.concatenate(sentences), RATE), params={"segments": True})

    *parts, end = parts_of(result, "text")
    text = "".join(part["text"] for part in parts)
    assert len(sentences) == 4
    assert count_edits(words_of(TEXT), words_of(text)) <= 0.1 * len(words_of(TEXT)), text
    assert "$7.20" in text
    seconds = sum(map(len, sentences)) / RATE
    times = [(each["start"], each["end"]) for part in parts for each in part["segments"]]
    assert times == sorted(times)
    assert 0.9 * seconds < times[-1][1] <= end["seconds"] == pytest.approx(seconds, abs=0.01)
    assert (end["language"], end["finish_reason"]) == ("english", "stop")


async def test_the_same_text_has_the_same_samples(speaker: SpeakText):
    [first] = await speak_text(speaker, "Good morning, Kubernetes!")
    calls = (speak_text(speaker, text) for text in ("Good morning, Kubernetes!", "Good evening.") * 2)
    together = await asyncio.gather(*calls)

    for [samples] in together[::2]:
        np.testing.assert_array_equal(samples, first)
    assert first.dtype == np.float32
    assert 0.05 < abs(first).max() <= 1.0


async def test_a_sentence_is_spoken_before_the_next_one_is_written(speaker: SpeakText):
    chunks = MemoryPipe()
    job = MemoryJob({"text": "", "chunks": chunks}, wants=("audio",))
    running = asyncio.create_task(execute_task(speaker, job))

    for text in ("The first sen", "tence ends. ", "The second"):
        chunks.feed(Item({"text": text}))
    async with asyncio.timeout(20):
        await job.outputs["audio"].until(1)
        assert not running.done()
        chunks.feed(Item({"text": " one too."}))
        chunks.close()
        await running

    assert len(job.outputs["audio"].items) == 2


@pytest.mark.parametrize(
    ("text", "kind", "problem"),
    [
        ("", BadRequest, "no words"),
        ("*** 🙂 ...", BadRequest, "no words"),
        ("Say привет now", BadRequest, "cannot pronounce в е и п р т"),
        ("very " * 5000, TooLarge, "20000 characters"),
    ],
)
async def test_a_text_that_it_cannot_speak_has_an_error(speaker: SpeakText, text: str, kind: type, problem: str):
    error = await call_in_vain(speaker, text=text, chunks=None)

    assert isinstance(error, kind)
    assert problem in error.message


def test_words_are_pronounced_by_the_lexicon_their_stem_their_letters_or_a_network():
    pronunciation = Pronunciation()
    sounds = {
        "The apple, the pear.": "ðɪ ˈæpəl, ðə pˈɛɹ.",
        "GPUs and NASA": "dʒˈiːpˈiːjˈuːz ænd nˈæsə",
        "croissants": "kɹwˌɑːsˈɑːnts",
        "the emcee's boxes": "ðɪ ˌɛmsˈiːz bˈɑːksᵻz",
        "emailed": "ˈiːmˌeɪld",
        "Tensorflow": "tˈɛnsɚloʊf",
        "hello world": "həlˈoʊ wˈɜːld",
    }

    assert {text: pronunciation.transcribe(text) for text in sounds} == sounds
