"""Turn detection: finds where the turns of a user begin and end from frames with speech.

Positions count all appended audio of the session, so that events and the client's own clock agree.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from omnibus_gateway.openai.realtime.session import AudioFormat, SemanticVad, ServerVad, TurnDetection
from omnibus_gateway.realtime.audio_format import rate_of, sample_bytes, to_pcm
from omnibus_gateway.realtime.speech_detectors import FRAME_MS, DetectorFactory, EnergyDetector

#: Consecutive frames of speech that begin a turn; a click is shorter.
_STARTING_FRAMES = 3
#: Milliseconds of silence after a turn that the model receives. An early answer can start once they have arrived.
_MODEL_SILENCE_MS = 200
#: Milliseconds of silence that end a turn, per eagerness: no model judges whether a sentence is complete.
_EAGERNESS_MS = {"low": 1500, "medium": 800, "auto": 800, "high": 400}


class SpeechEdge(NamedTuple):
    """Beginning or end of speech. Times are milliseconds from the session's start.

    The model receives the turn up to ``cutoff_ms``, which is 0 at its beginning.
    """

    begins: bool
    at_ms: int
    cutoff_ms: int = 0


class TurnDetector:
    """Finds turns in audio; ``begin_ms`` is the position of its first byte."""

    def __init__(
        self,
        config: TurnDetection,
        format: AudioFormat,
        begin_ms: float,
        create_detector: DetectorFactory = EnergyDetector,
    ) -> None:
        server = config if isinstance(config, ServerVad) else ServerVad()
        self.prefix_ms = server.prefix_padding_ms
        self._silence_ms = (
            _EAGERNESS_MS[config.eagerness] if isinstance(config, SemanticVad) else server.silence_duration_ms
        )
        self._model_silence_ms = min(_MODEL_SILENCE_MS, self._silence_ms)
        self._detector = create_detector(server.threshold, rate_of(format))
        self._format = format
        self._frame_bytes = rate_of(format) * FRAME_MS // 1000 * sample_bytes(format)
        self._rest = b""
        self._begin_ms = begin_ms
        self._frames = 0  # classified so far
        self._floor_ms = begin_ms  # the next turn begins no earlier
        self._loud = 0  # consecutive frames of speech
        self._quiet = 0  # consecutive frames without speech
        self.is_speaking = False

    @property
    def noise_db(self) -> float | None:
        """Estimate of the noise in decibels of full scale; None if the detector has none."""
        return self._detector.noise_db

    @property
    def pause_ms(self) -> int | None:
        """Moment at which the turn ends if silence continues; None during speech, and outside turns.

        In milliseconds from the start of the session, like ``SpeechEdge.cutoff_ms``.
        """
        if not self.is_speaking or self._quiet * FRAME_MS < self._model_silence_ms:
            return None
        return self._find_cutoff()

    def resume(self, speaking: bool, noise_db: float | None) -> None:
        """Continue from the state of another detector of the same session."""
        self.is_speaking = speaking
        if noise_db is not None:
            self._detector.noise_db = noise_db

    @property
    def in_thread(self) -> bool:
        """True if audio is classified in a thread, see ``SpeechDetector``."""
        return bool(getattr(self._detector, "in_thread", False))

    def classify_audio(self, data: bytes) -> Sequence[bool]:
        """Append audio; return True for each newly complete frame with speech, for ``find_edges``."""
        whole = self._rest + data
        size = len(whole) // self._frame_bytes * self._frame_bytes
        self._rest = whole[size:]
        if not size:
            return ()
        samples = (np.frombuffer(to_pcm(whole[:size], self._format), "<i2") / 32768).astype(np.float32)
        frames = samples.reshape(size // self._frame_bytes, -1)
        return self._detector.classify_frames(frames)

    def find_edges(self, frames: Sequence[bool]) -> Iterator[SpeechEdge]:
        """Yield beginnings and ends of speech in the next ``frames``, in order."""
        for speech in frames:
            self._frames += 1
            edge = self._find_end(speech) if self.is_speaking else self._find_begin(speech)
            if edge is not None:
                yield edge

    def end_turn(self) -> None:
        """Reset after a turn that the client ended; further audio belongs to the next turn."""
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
        cutoff_ms = self._find_cutoff()
        self.end_turn()
        return SpeechEdge(False, int(self._now_ms), cutoff_ms)

    def _find_cutoff(self) -> int:
        return int(self._now_ms) - self._quiet * FRAME_MS + self._model_silence_ms
