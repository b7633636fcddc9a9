"""Turns of a user in the audio of a session: where they begin and end, by the speech that a detector finds in it.

Positions count all audio that was ever appended, so that events name the same moment as the client's own clock.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from services.gateway.openai.realtime.session import AudioFormat, SemanticVad, ServerVad, TurnDetection
from services.gateway.realtime.audio_format import rate_of, sample_bytes, to_pcm
from services.gateway.realtime.speech_detectors import FRAME_MS, DetectorFactory, EnergyDetector

#: Frames of speech in a row that begin a turn: a click is shorter.
_STARTING_FRAMES = 3
#: Milliseconds of the silence behind a turn that the model hears. An answer can be begun once they have come.
_MODEL_SILENCE_MS = 200
#: Milliseconds of silence that end a turn, for each eagerness: no model judges whether a sentence is complete.
_EAGERNESS_MS = {"low": 1500, "medium": 800, "auto": 800, "high": 400}


class SpeechEdge(NamedTuple):
    """Begin or end of speech at a moment, in milliseconds from the beginning of the session.

    What a model hears of a turn ends at ``cutoff_ms``; 0 at its begin.
    """

    begins: bool
    at_ms: int
    cutoff_ms: int = 0


class TurnDetector:
    """Finds turns in audio of ``format`` that begins at ``begin_ms`` of the session."""

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
        self._floor_ms = begin_ms  # nothing before it belongs to a next turn
        self._loud = 0  # frames of speech in a row
        self._quiet = 0  # frames without, since there was some
        self.is_speaking = False

    @property
    def noise_db(self) -> float | None:
        """Decibels of full scale that the noise is held to have; None where the detector learns none."""
        return self._detector.noise_db

    @property
    def pause_ms(self) -> int | None:
        """The moment at which what is being said ends if nothing follows; None while somebody speaks, or nobody.

        In milliseconds from the beginning of the session: that of ``SpeechEdge.cutoff_ms``.
        """
        if not self.is_speaking or self._quiet * FRAME_MS < self._model_silence_ms:
            return None
        return self._find_cutoff()

    def resume(self, speaking: bool, noise_db: float | None) -> None:
        """Go on where another detector of the same session was."""
        self.is_speaking = speaking
        if noise_db is not None:
            self._detector.noise_db = noise_db

    @property
    def in_thread(self) -> bool:
        """True where audio is classified in a thread, see ``SpeechDetector``."""
        return bool(getattr(self._detector, "in_thread", False))

    def classify_audio(self, data: bytes) -> Sequence[bool]:
        """Take more audio; returns for each frame that is complete now whether it is speech, for ``find_edges``."""
        whole = self._rest + data
        size = len(whole) // self._frame_bytes * self._frame_bytes
        self._rest = whole[size:]
        if not size:
            return ()
        samples = (np.frombuffer(to_pcm(whole[:size], self._format), "<i2") / 32768).astype(np.float32)
        frames = samples.reshape(size // self._frame_bytes, -1)
        return self._detector.classify_frames(frames)

    def find_edges(self, frames: Sequence[bool]) -> Iterator[SpeechEdge]:
        """Yield begins and ends of speech in the next ``frames``, in their order."""
        for speech in frames:
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
        cutoff_ms = self._find_cutoff()
        self.end_turn()
        return SpeechEdge(False, int(self._now_ms), cutoff_ms)

    def _find_cutoff(self) -> int:
        return int(self._now_ms) - self._quiet * FRAME_MS + self._model_silence_ms
