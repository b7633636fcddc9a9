"""Requests for speech, and the whole model's text and audio."""

import base64
import io
import wave
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from omnibus.families import catalog
from tests import models_oracle as oracle
from tests.e2e.questions import Question
from tests.e2e.system import OMNI

TOKENS, CODES, SEED, VOICE = 10, 40, 7, "Chelsie"
FAMILY = catalog.find_family("qwen2_5_omni")
APART = "EV>EA>Th>Ta>V"


class Spoken(NamedTuple):
    """An answer: its text and its audio, int16 [n] at 24 kHz."""

    text: str
    sound: np.ndarray


def make_speech_body(question: Question, format: str = "wav", **more: Any) -> dict[str, Any]:
    """Body of a request for text and speech, greedy with fixed seed."""
    return {
        "model": OMNI,
        "messages": question.messages,
        "modalities": ["text", "audio"],
        "audio": {"voice": VOICE, "format": format, "max_tokens": CODES},
        "max_tokens": TOKENS,
        "temperature": 0,
        "seed": SEED,
        **more,
    }


def choose_path(shape: str, question: Question, speech: bool) -> str:
    """Path of ``question`` in this ``shape``, without executors that are not needed."""
    components = {"thinker", *(FAMILY["encoders"][kind] for kind in question.media)}
    components |= {"talker", "vocoder"} if speech else set()
    return ">".join(option for option in shape.split(">") if components & {*FAMILY["options"][option]["components"]})


def whole_model(checkpoint: Path, question: Question, tokens: int = TOKENS, codes: int = CODES) -> Spoken:
    """Text and audio from ``generate`` of the whole model."""
    _, text, _, sound = oracle.omni_answer(checkpoint, question.plain, question.media, tokens, VOICE, codes, SEED)
    return Spoken(text, to_pcm(sound.numpy().reshape(-1)))


def to_pcm(samples: np.ndarray) -> np.ndarray:
    """Float samples in [-1, 1] as 16-bit steps."""
    return (np.clip(samples, -1, 1) * 32767).round().astype(np.int16)


def read_spoken(answer: Mapping[str, Any]) -> Spoken:
    """Content of a ``chat.completion`` with WAV audio."""
    message = answer["choices"][0]["message"]
    with wave.open(io.BytesIO(base64.b64decode(message["audio"]["data"]))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        sound = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    assert message["audio"]["transcript"] == message["content"]
    return Spoken(message["content"], sound)


def assert_same_speech(actual: Spoken, reference: Spoken) -> None:
    """Check that text and audio agree.

    A difference of 1e-5 in float is at most one 16-bit step after rounding.
    """
    assert actual.text == reference.text
    assert actual.sound.shape == reference.sound.shape
    assert int(np.abs(actual.sound.astype(int) - reference.sound).max(initial=0)) <= 1
