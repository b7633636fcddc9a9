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
from tests.unit.jobs import MemoryJob, finish_job

#: Samples per second of microphones in realtime sessions; encoders resample them.
RATE = 24_000
SECONDS = 9.0

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def audio_encoder(omni: Path) -> MediaEncoder:
    return load_family("qwen2_5_omni").load("audio", omni)


@pytest.fixture
async def runner(omni: Path) -> AsyncIterator[EncodeRunner]:
    encode_runner = EncodeRunner("audio", "qwen2_5_omni", omni, "cpu", "float32", EncodeSettings(cache=16 << 20))
    await encode_runner.load()
    yield encode_runner
    await encode_runner.close()


def make_speech(seed: int = 0) -> np.ndarray:
    """Return syllable-like audio with noise between syllables, the first the loudest: float [n]."""
    times = np.arange(int(SECONDS * RATE)) / RATE
    dice = np.random.default_rng(seed)
    syllables = dice.uniform(0.05, 0.3, int(SECONDS * 4))
    syllables[0] = 0.4
    loud = np.repeat(syllables, RATE // 4)
    return loud * np.sin(2 * np.pi * 220 * (1 + seed) * times) + 0.01 * dice.standard_normal(len(times))


def encode_wav(samples: np.ndarray) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return out.getvalue()


def cut_wav(samples: np.ndarray, seconds: float) -> bytes:
    return encode_wav(samples[: int(seconds * RATE)])


async def encode_file(runner: EncodeRunner, file: bytes, salt: str = "") -> np.ndarray:
    data = {"modality": "audio", "sha256": "0" * 64, **({"salt": salt} if salt else {})}
    job = await finish_job(runner, MemoryJob({"media": Item(data, np.frombuffer(file, np.uint8))}))
    return job.array("embedding")


@torch.inference_mode()
def encode_alone(audio: MediaEncoder, file: bytes) -> np.ndarray:
    [output] = audio.encode([audio.prepare(memoryview(file), "audio")])
    return output.embeds.numpy()


@pytest.mark.numeric
async def test_a_sound_that_goes_on_is_encoded_from_its_last_window(runner: EncodeRunner, audio_encoder: MediaEncoder):
    samples, reused_counts = make_speech(), []
    for seconds in (2.5, 4.6, 7.0, 9.0):
        file = cut_wav(samples, seconds)

        actual = await encode_file(runner, file)

        assert_close(actual, encode_alone(audio_encoder, file))
        reused_counts.append(runner.stats()["reused_parts"])
    assert reused_counts == [0, 1, 3, 6]  # of windows of 2 s: all that were complete last time
    assert runner.stats()["batches"] == {"1": 4}  # the new part of one audio input is one item


@pytest.mark.numeric
@pytest.mark.parametrize("seconds", [0.1, 1.99, 2.0, 2.01, 2.03, 4.0, 8.99])
async def test_a_sound_of_any_length_is_the_same_behind_a_known_beginning(
    runner: EncodeRunner, audio_encoder: MediaEncoder, seconds: float
):
    samples = make_speech(1)
    await encode_file(runner, encode_wav(samples))

    actual = await encode_file(runner, cut_wav(samples, seconds))

    assert_close(actual, encode_alone(audio_encoder, cut_wav(samples, seconds)))


@pytest.mark.numeric
async def test_a_beginning_that_sounds_otherwise_beside_what_follows_is_encoded_anew(
    runner: EncodeRunner, audio_encoder: MediaEncoder
):
    """Anything 80 dB below the loudest moment counts as silence, throughout the audio."""
    samples = make_speech(2)
    samples[: 3 * RATE] *= 1e-4
    quiet, whole = cut_wav(samples, 2.5), encode_wav(samples)
    await encode_file(runner, quiet)

    actual = await encode_file(runner, whole)

    assert runner.stats()["reused_parts"] == 0
    assert_close(actual, encode_alone(audio_encoder, whole))


async def test_windows_are_shared_within_a_tenant(runner: EncodeRunner):
    samples = make_speech()
    for salt in ("mine", "yours"):
        await encode_file(runner, cut_wav(samples, 2.5), salt)
    before = runner.stats()["reused_parts"]

    await encode_file(runner, cut_wav(samples, 4.5), "mine")
    await encode_file(runner, cut_wav(samples, 4.5), "nobodys")

    assert (before, runner.stats()["reused_parts"]) == (0, 1)


@pytest.mark.numeric
@pytest.mark.parametrize("seconds", [0.7, 2.0, 2.02, 5.1])
def test_the_parts_of_a_sound_are_its_rows(audio_encoder: MediaEncoder, seconds: float):
    item = audio_encoder.prepare(memoryview(cut_wav(make_speech(3), seconds)), "audio")
    with torch.inference_mode():
        [whole] = audio_encoder.encode([item])
        parts = audio_encoder.encode(audio_encoder.split_item(item))
        [joined_output] = audio_encoder.encode([audio_encoder.join_parts(audio_encoder.split_item(item))])

    assert_close(torch.cat([part.embeds for part in parts]), whole.embeds)
    assert_close(joined_output.embeds, whole.embeds)
