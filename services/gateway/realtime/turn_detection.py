"""Turns of a user in the audio of a session: where they begin and end, by how loud it is.

Positions count all audio that was ever appended, so that events name the same moment as the client's own clock.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.gateway.openai.realtime.session import AudioFormat, SemanticVad, ServerVad, TurnDetection
from services.gateway.realtime.audio_format import rate_of, sample_bytes, to_pcm

FRAME_MS = 20
#: Frames of speech in a row that begin a turn: a click is shorter.
_STARTING_FRAMES = 3
#: Decibels of full scale below which nothing is speech, and at which the noise of a room is expected at first.
_QUIETEST_DB, _FIRST_NOISE_DB = -50.0, -65.0
#: Decibels above the noise that are speech at a threshold of 0, and how many more at one of 1.
_MARGIN_DB, _THRESHOLD_DB = 6.0, 12.0
#: Decibels a second by which the noise is held to become louder, in silence and while somebody speaks.
_RISE_DB, _SPEECH_RISE_DB = 3.0, 0.5
#: Milliseconds of silence that end a turn, for each eagerness: no model judges whether a sentence is complete.
_EAGERNESS_MS = {"low": 1500, "medium": 800, "auto": 800, "high": 400}


class SpeechEdge(NamedTuple):
    """Begin or end of speech at a moment, in milliseconds from the beginning of the session."""

    begins: bool
    at_ms: int


class EnergyDetector:
    """Tells frames of speech from noise by their loudness, and learns how loud the noise is."""

    def __init__(self, threshold: float) -> None:
        self._margin_db = _MARGIN_DB + _THRESHOLD_DB * threshold
        self._noise_db = _FIRST_NOISE_DB

    @property
    def noise_db(self) -> float:
        """Decibels of full scale that the noise is held to have."""
        return self._noise_db

    @noise_db.setter
    def noise_db(self, level: float) -> None:
        self._noise_db = level

    def classify_frames(self, frames: NDArray[np.float32]) -> list[bool]:
        """Return for each of ``frames``, float32 [n, samples] in [-1, 1], whether it is speech."""
        power = np.mean(np.square(frames, dtype=np.float64), axis=1)
        return [self._is_speech(float(level)) for level in 10.0 * np.log10(power + 1e-12)]

    def _is_speech(self, level_db: float) -> bool:
        speech = level_db > max(_QUIETEST_DB, self._noise_db + self._margin_db)
        rise = (_SPEECH_RISE_DB if speech else _RISE_DB) * FRAME_MS / 1000
        self._noise_db = min(level_db, self._noise_db + rise) if not speech else self._noise_db + rise
        self._noise_db = max(self._noise_db, _FIRST_NOISE_DB)
        return speech


class TurnDetector:
    """Finds turns in audio of ``format`` that begins at ``begin_ms`` of the session."""

    def __init__(self, config: TurnDetection, format: AudioFormat, begin_ms: float) -> None:
        server = config if isinstance(config, ServerVad) else ServerVad()
        self.prefix_ms = server.prefix_padding_ms
        self._silence_ms = (
            _EAGERNESS_MS[config.eagerness] if isinstance(config, SemanticVad) else server.silence_duration_ms
        )
        self._detector = EnergyDetector(server.threshold)
        self._format = format
        self._frame_bytes = rate_of(format) * FRAME_MS // 1000 * sample_bytes(format)
        self._rest = b""
        self._begin_ms = begin_ms
        self._frames = 0  # classified so far
        self._floor_ms = begin_ms  # nothing before it belongs to a next turn
        self._loud = 0  # frames of speech in a row
        self._quiet = 0  # frames without, since there was some
        self.is_speaking = False

    @property
    def noise_db(self) -> float:
        """Decibels of full scale that the noise is held to have."""
        return self._detector.noise_db

    def resume(self, speaking: bool, noise_db: float | None) -> None:
        """Go on where another detector of the same session was."""
        self.is_speaking = speaking
        if noise_db is not None:
            self._detector.noise_db = noise_db

    def push_audio(self, data: bytes) -> Iterator[SpeechEdge]:
        """Take more audio; yields begins and ends of speech in it, in their order."""
        whole = self._rest + data
        size = len(whole) // self._frame_bytes * self._frame_bytes
        self._rest = whole[size:]
        if not size:
            return
        samples = (np.frombuffer(to_pcm(whole[:size], self._format), "<i2") / 32768).astype(np.float32)
        frames = samples.reshape(size // self._frame_bytes, -1)
        for speech in self._detector.classify_frames(frames):
            self._frames += 1
            edge = self._find_end(speech) if self.is_speaking else self._find_begin(speech)
            if edge is not None:
                yield edge

    def end_turn(self) -> None:
        """The client has ended the turn itself; what comes is another one."""
        self.is_speaking = False
        self._loud = self._quiet = 0
        self._floor_ms = self._now_ms

    @property
    def _now_ms(self) -> float:
        return self._begin_ms + self._frames * FRAME_MS

    def _find_begin(self, speech: bool) -> SpeechEdge | None:
        self._loud = self._loud + 1 if speech else 0
        if self._loud < _STARTING_FRAMES:
            return None
        self.is_speaking, self._quiet = True, 0
        begin = self._now_ms - self._loud * FRAME_MS - self.prefix_ms
        return SpeechEdge(True, int(max(begin, self._floor_ms)))

    def _find_end(self, speech: bool) -> SpeechEdge | None:
        self._quiet = 0 if speech else self._quiet + 1
        if self._quiet * FRAME_MS < self._silence_ms or speech:
            return None
        self.end_turn()
        return SpeechEdge(False, int(self._now_ms))
