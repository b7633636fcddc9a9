"""Recordings, and what the library's ``generate`` writes of them."""

import io
import wave
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from omnibus_models import torchvision_cpu
from omnibus_models.families._speech_encoder import cut_windows
from omnibus_models.tiny.speech_to_text import WINDOW_SECONDS

# The library imports torchvision with its models if it is installed.
torchvision_cpu.install_operators()

RATE = 16_000


class LibraryWindow(NamedTuple):
    """A window's seconds in its recording, the tokens of its answer without the end, and their text."""

    begin: float
    end: float
    ids: list[int]
    text: str


def make_speech(seconds: float) -> np.ndarray:
    """Make syllables of rising and falling tones, with pauses between them."""
    times = np.arange(int(seconds * RATE)) / RATE
    tone = np.sin(2 * np.pi * np.cumsum(250 + 150 * np.sin(2 * np.pi * 0.7 * times)) / RATE)
    return (0.3 * tone * (np.sin(2 * np.pi * 0.9 * times) > -0.2)).astype(np.float32)


def write_wav(samples: np.ndarray) -> bytes:
    """Write a file of 16-bit samples."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(RATE)
        writer.writeframes((samples * 32768).astype("<i2").tobytes())
    return file.getvalue()


def transcribe_by_library(
    checkpoint: Path,
    samples: np.ndarray,
    *,
    language: str | None = None,
    task: str = "transcribe",
    prompt: str = "",
    timestamps: bool = False,
    window_seconds: float = WINDOW_SECONDS,
) -> list[LibraryWindow]:
    """Transcribe the windows of ``samples`` one by one. A language is detected in the first one."""
    samples = np.frombuffer(write_wav(samples)[44:], "<i2").astype(np.float32) / 32768
    from transformers import WhisperForConditionalGeneration, WhisperProcessor

    model: Any = WhisperForConditionalGeneration.from_pretrained(checkpoint).eval()
    processor: Any = WhisperProcessor.from_pretrained(checkpoint)
    passes = _record_passes(model)
    windows = []
    if not hasattr(model.generation_config, "lang_to_id"):  # a model of English
        language = task = None  # type: ignore[assignment]
    for begin, end in _window_bounds(samples, window_seconds):
        inputs = processor(samples[begin:end], sampling_rate=RATE, return_tensors="pt").input_features
        if language is None and task is not None:
            [token] = model.detect_language(inputs).tolist()
            language = processor.tokenizer.convert_ids_to_tokens(token).strip("<|>")
        options = {"prompt_ids": processor.get_prompt_ids(prompt, return_tensors="pt")} if prompt and not begin else {}
        passes.clear()
        model.generate(inputs, language=language, task=task, return_timestamps=timestamps, do_sample=False, **options)
        ids = [id for id in passes[0] if id != processor.tokenizer.eos_token_id]
        text = processor.tokenizer.decode([id for id in ids if id < processor.tokenizer.eos_token_id])
        windows.append(LibraryWindow(begin / RATE, end / RATE, ids, text))
    return windows


def align_by_library(checkpoint: Path, samples: np.ndarray, language: str) -> list[tuple[str, float, float]]:
    """Return the words of the first pass of each window, and their seconds in the recording."""
    from transformers import WhisperForConditionalGeneration, WhisperProcessor

    samples = np.frombuffer(write_wav(samples)[44:], "<i2").astype(np.float32) / 32768
    model: Any = WhisperForConditionalGeneration.from_pretrained(checkpoint, attn_implementation="eager").eval()
    processor: Any = WhisperProcessor.from_pretrained(checkpoint)
    outputs: list[Any] = []
    _record_passes(model, outputs)
    words = []
    for begin, end in _window_bounds(samples):
        inputs = processor(
            samples[begin:end],
            sampling_rate=RATE,
            return_tensors="pt",
            return_attention_mask=True,
            padding="max_length",
        )
        outputs.clear()
        model.generate(
            **inputs, language=language, return_timestamps=True, return_token_timestamps=True, do_sample=False
        )
        tokens, times = outputs[0]["sequences"][None], outputs[0]["token_timestamps"][None]
        _, parts = processor.tokenizer._decode_asr(
            [{"tokens": tokens[:, -len(times[0]) :], "token_timestamps": times}],
            return_timestamps="word", return_language=False, time_precision=0.02,
        )  # fmt: skip
        words += [
            (each["text"].strip(), *(begin / RATE + time for time in each["timestamp"])) for each in parts["chunks"]
        ]
    return words


def _window_bounds(samples: np.ndarray, seconds: float = WINDOW_SECONDS) -> Iterator[tuple[int, int]]:
    return pairwise(cut_windows(samples, RATE, seconds))


def _record_passes(model: Any, outputs: list[Any] | None = None) -> list[list[int]]:
    """Return the tokens of each pass of ``generate``: it repeats what follows the last timestamp of a window.

    ``outputs`` gets all data of each pass.
    """
    passes: list[list[int]] = []
    generate = model.generate_with_fallback

    def generate_recorded(*args: Any, **options: Any) -> Any:
        result = generate(*args, **options)
        passes.append(result[0][0].tolist())
        if outputs is not None:
            outputs.append(result[1][0])
        return result

    model.generate_with_fallback = generate_recorded
    return passes
