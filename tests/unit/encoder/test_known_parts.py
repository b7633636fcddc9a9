"""Audio that grows is encoded from its last known part. The result is the same as all at once."""

import io
import wave
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import torch

from omnibus.executor.runner import Item
from omnibus_encoder.media_encoder import EncodeRunner, EncodeSettings
from omnibus_models.contract import MediaEncoder
from omnibus_models.families import load_family
from tests.close import assert_close
from tests.unit.jobs import MemoryJob, run

#: Samples per second of microphones in realtime sessions; encoders resample them.
RATE = 24_000
SECONDS = 9.0

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def audio(omni: Path) -> MediaEncoder:
    return load_family("qwen2_5_omni").load("audio", omni)


@pytest.fixture
async def runner(omni: Path) -> AsyncIterator[EncodeRunner]:
    made = EncodeRunner("audio", "qwen2_5_omni", omni, "cpu", "float32", EncodeSettings(cache=16 << 20))
    await made.load()
    yield made
    await made.close()


def speech(seed: int = 0) -> np.ndarray:
    """Return syllable-like audio with noise between syllables, the first the loudest: float [n]."""
    times = np.arange(int(SECONDS * RATE)) / RATE
    dice = np.random.default_rng(seed)
    syllables = dice.uniform(0.05, 0.3, int(SECONDS * 4))
    syllables[0] = 0.4
    loud = np.repeat(syllables, RATE // 4)
    return loud * np.sin(2 * np.pi * 220 * (1 + seed) * times) + 0.01 * dice.standard_normal(len(times))


def wav(samples: np.ndarray) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return out.getvalue()


def until(samples: np.ndarray, seconds: float) -> bytes:
    return wav(samples[: int(seconds * RATE)])


async def encode(runner: EncodeRunner, file: bytes, salt: str = "") -> np.ndarray:
    said = {"modality": "audio", "sha256": "0" * 64, **({"salt": salt} if salt else {})}
    done = await run(runner, MemoryJob({"media": Item(said, np.frombuffer(file, np.uint8))}))
    return done.array("embedding")


@torch.inference_mode()
def alone(audio: MediaEncoder, file: bytes) -> np.ndarray:
    [encoded] = audio.encode([audio.prepare(memoryview(file), "audio")])
    return encoded.embeds.numpy()


@pytest.mark.numeric
async def test_a_sound_that_goes_on_is_encoded_from_its_last_window(runner: EncodeRunner, audio: MediaEncoder):
    samples, reused = speech(), []
    for seconds in (2.5, 4.6, 7.0, 9.0):
        file = until(samples, seconds)

        found = await encode(runner, file)

        assert_close(found, alone(audio, file))
        reused.append(runner.stats()["reused_parts"])
    assert reused == [0, 1, 3, 6]  # of windows of 2 s: all that were complete last time
    assert runner.stats()["batches"] == {"1": 4}  # the new part of one audio input is one item


@pytest.mark.numeric
@pytest.mark.parametrize("seconds", [0.1, 1.99, 2.0, 2.01, 2.03, 4.0, 8.99])
async def test_a_sound_of_any_length_is_the_same_behind_a_known_beginning(
    runner: EncodeRunner, audio: MediaEncoder, seconds: float
):
    samples = speech(1)
    await encode(runner, wav(samples))

    found = await encode(runner, until(samples, seconds))

    assert_close(found, alone(audio, until(samples, seconds)))


@pytest.mark.numeric
async def test_a_beginning_that_sounds_otherwise_beside_what_follows_is_encoded_anew(
    runner: EncodeRunner, audio: MediaEncoder
):
    """Anything 80 dB below the loudest moment counts as silence, throughout the audio."""
    samples = speech(2)
    samples[: 3 * RATE] *= 1e-4
    quiet, whole = until(samples, 2.5), wav(samples)
    await encode(runner, quiet)

    found = await encode(runner, whole)

    assert runner.stats()["reused_parts"] == 0
    assert_close(found, alone(audio, whole))


async def test_windows_are_shared_within_a_tenant(runner: EncodeRunner):
    samples = speech()
    for salt in ("mine", "yours"):
        await encode(runner, until(samples, 2.5), salt)
    before = runner.stats()["reused_parts"]

    await encode(runner, until(samples, 4.5), "mine")
    await encode(runner, until(samples, 4.5), "nobodys")

    assert (before, runner.stats()["reused_parts"]) == (0, 1)


@pytest.mark.numeric
@pytest.mark.parametrize("seconds", [0.7, 2.0, 2.02, 5.1])
def test_the_parts_of_a_sound_are_its_rows(audio: MediaEncoder, seconds: float):
    item = audio.prepare(memoryview(until(speech(3), seconds)), "audio")
    with torch.inference_mode():
        [whole] = audio.encode([item])
        parts = audio.encode(audio.split_item(item))
        [joined] = audio.encode([audio.join_parts(audio.split_item(item))])

    assert_close(torch.cat([part.embeds for part in parts]), whole.embeds)
    assert_close(joined.embeds, whole.embeds)
