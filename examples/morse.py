"""A model without weights: it speaks Morse code, transcribes it, and embeds texts by their letters."""

from collections import Counter
from collections.abc import AsyncIterator
from itertools import groupby
from string import ascii_lowercase

import numpy as np

from omnibus.app import App
from omnibus.task import Audio, Media, Stream, TaskInput, TaskOutput, Tensor, UnitTask, Value
from omnibus.task.library import (
    PlacedMedia,
    RecordingInput,
    SpeechOutput,
    TextInput,
    TextToSpeechInput,
    Transcript,
    TranscriptChunk,
    Vectors,
)
from omnibus_models.media import decode_audio

_CODES = ".- -... -.-. -.. . ..-. --. .... .. .--- -.- .-.. -- -. --- .--. --.- .-. ... - ..- ...- .-- -..- -.-- --.."
LETTERS = dict(zip(_CODES.split(), ascii_lowercase, strict=True))
MARKS = {letter: code for code, letter in LETTERS.items()}
RATE, UNIT = 8000, 480  # samples per second, and of a dot
PITCHES = {"high": 800, "low": 500}  # hertz

app = App(model="morse", voices=tuple(PITCHES))


class Line(TaskInput):
    text: str
    voice: str


class Beeps(TaskOutput):
    audio: Stream[Audio]


class Send(UnitTask[Line, Beeps]):
    async def run(self, line: Line) -> AsyncIterator[dict[str, Audio]]:
        wave = 0.5 * np.sin(2 * np.pi * PITCHES[line.voice] / RATE * np.arange(3 * UNIT), dtype=np.float32)
        pause = np.zeros(UNIT, np.float32)
        for letter in line.text.lower():
            parts: list[np.ndarray] = []
            for mark in MARKS.get(letter, " "):
                parts += [wave[: UNIT if mark == "." else 3 * UNIT] if mark != " " else pause, pause]
            yield {"audio": Audio(rate=RATE, array=np.concatenate([*parts, pause, pause]))}


class Sound(TaskInput):
    file: PlacedMedia


class Heard(TaskOutput):
    text: Stream[TranscriptChunk]


class Receive(UnitTask[Sound, Heard]):
    def run(self, sound: Sound) -> Heard:
        samples = decode_audio(Media.content(sound.file), rate=RATE)
        loud = np.abs(samples[: len(samples) // UNIT * UNIT].reshape(-1, UNIT)).mean(axis=1) > 0.1
        runs = [(is_on, len(list(units))) for is_on, units in groupby(loud)]
        code = "".join(("." if count < 2 else "-") if is_on else " " * (count // 3) for is_on, count in runs)
        words = [[LETTERS.get(letter, "?") for letter in word.split(" ")] for word in code.strip().split("  ")]
        text = " ".join("".join(word) for word in words)
        seconds = len(samples) / RATE
        return Heard(
            text=[TranscriptChunk(text=text, segments=[{"start": 0.0, "end": seconds, "text": text}], seconds=seconds)]
        )


class Texts(TaskInput):
    texts: Value[list[str]]


class Counts(TaskOutput):
    vectors: Tensor


class Count(UnitTask[Texts, Counts]):
    def run(self, texts: Texts) -> Counts:
        counts = [Counter(text.lower()) for text in texts.texts]
        vectors = np.array([[count[letter] for letter in ascii_lowercase] for count in counts], np.float32)
        return Counts(vectors=vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9))


SEND, RECEIVE, COUNT = Send(), Receive(), Count()


async def speak(request: TextToSpeechInput) -> SpeechOutput:
    return SpeechOutput(audio=(await SEND(Line(text=request.string, voice=request.voice))).audio)


async def transcribe(request: RecordingInput) -> Transcript:
    return Transcript(text=(await RECEIVE(Sound(file=request.media))).text)


async def embed(request: TextInput) -> Vectors:
    counts = await COUNT(Texts(texts=request.strings))
    return Vectors(embedding=counts.vectors, tokens=sum(map(len, request.strings)))
