"""Audio that a client appends: detection of turns in it, and its log.

While the user speaks, and in sessions without turn detection, all audio is logged. Of silence, only the duration is
logged, up to audio that may be the beginning of a turn. A client that resumes the session sends the rest again.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import floor

from omnibus.recording.sessions import InputChange
from omnibus_gateway.openai.realtime.session import SessionConfig
from omnibus_gateway.realtime.audio_format import to_bytes
from omnibus_gateway.realtime.input_audio import InputAudioBuffer
from omnibus_gateway.realtime.speech_detectors import EnergyDetector, FindDetector
from omnibus_gateway.realtime.turn_detection import SpeechEdge, TurnDetector

#: Threads for slow detectors, started with the first session that uses one.
_CLASSIFIERS = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2), "speech")
#: Milliseconds of audio without speech that are buffered, for clients that commit it themselves.
MAX_SILENCE_MS = 30_000
#: Milliseconds of silence after which the log gets its duration.
_LOGGED_SILENCE_MS = 1000
#: Last milliseconds of silence that may already belong to a turn, however short the padding of turns is.
_LEAST_PREFIX_MS = 100


class InputTurns:
    """Audio input of one session; ``on_change`` is called with the change of the buffered bytes.

    ``find_detector`` returns the speech detector for a model.
    """

    def __init__(
        self,
        config: SessionConfig,
        on_change: Callable[[int], None],
        restored_input: InputChange | None = None,
        find_detector: FindDetector = lambda _: EnergyDetector,
    ) -> None:
        self._config = config
        self._find_detector = find_detector
        self._buffer = InputAudioBuffer(config.input_format, on_change, restored_input)
        self._detector = self._create_detector()
        self._logged_bytes = self._buffer.end_bytes
        self._differs = False  # the buffer is not the logged audio plus new audio
        self.speech_id = ""  # of the message that the user is speaking
        if restored_input is not None:
            self.speech_id = restored_input.speech
            if self._detector is not None:
                self._detector.resume(bool(restored_input.speech), restored_input.noise_db)

    @property
    def end_bytes(self) -> int:
        """Total bytes appended in the session."""
        return self._buffer.end_bytes

    @property
    def pause_ms(self) -> int | None:
        """Moment at which the message ends if silence continues.

        None while the user speaks, and if there is no message.
        """
        return self._detector.pause_ms if self._detector is not None and self.speech_id else None

    @property
    def is_growing(self) -> bool:
        """True while new audio belongs to a message: the user speaks, or the client detects turns itself."""
        return self._detector is None or (bool(self.speech_id) and self._detector.pause_ms is None)

    @property
    def held_ms(self) -> int:
        """Milliseconds of buffered audio."""
        return int(self._buffer.held_ms)

    @property
    def begin_ms(self) -> int:
        """Moment at which the buffered audio begins."""
        return int(self._buffer.begin_ms)

    def read_until(self, end_ms: int) -> bytes:
        """Return the audio of the current message up to ``end_ms``."""
        return self._buffer.read_until(end_ms)

    def configure(self, config: SessionConfig) -> None:
        """Apply ``config`` to the audio that follows."""
        before, self._config = self._config, config
        self._buffer.change_format(config.input_format)
        if _detection_of(before) != _detection_of(config):
            self._detector = self._create_detector()
            self._differs = True

    def _create_detector(self) -> TurnDetector | None:
        detection, buffer = self._config.turn_detection, self._buffer
        if detection is None:
            return None
        create = self._find_detector(_hearing_model(self._config))
        return TurnDetector(detection, buffer.format, buffer.end_ms, create)

    async def append_audio(self, data: bytes) -> Sequence[bool]:
        """Append audio; return True for each frame with speech, for ``find_edges``.

        Raises ``TooLarge`` and ``Overloaded``.
        """
        self._buffer.append_audio(data)
        detector = self._detector
        if detector is None:
            return ()
        if detector.in_thread:
            return await asyncio.get_running_loop().run_in_executor(_CLASSIFIERS, detector.classify_audio, data)
        return detector.classify_audio(data)

    def find_edges(self, frames: Sequence[bool]) -> Iterator[SpeechEdge]:
        """Yield the beginnings and ends of speech in ``frames``."""
        if self._detector is None:
            return
        yield from self._detector.find_edges(frames)
        if not self._detector.is_speaking:
            self._buffer.drop_before(self._buffer.end_ms - MAX_SILENCE_MS)

    def begin_speech(self, at_ms: int, id: str) -> None:
        """Begin message ``id``: the user speaks since ``at_ms``."""
        self._buffer.drop_before(at_ms)
        self.speech_id, self._differs = id, True

    def commit_audio(self, end_ms: int | None = None) -> bytes:
        """Remove and return the audio of a message, up to ``end_ms``. Raises ``EventRefused`` if empty."""
        data = self._buffer.commit_audio(end_ms)
        self.speech_id, self._differs = "", True
        return data

    def clear_audio(self) -> None:
        """Drop all audio."""
        self._buffer.clear_audio()
        self.speech_id, self._differs = "", True
        self.end_turn()

    def end_turn(self) -> None:
        """Reset the detector after a turn that the client ended."""
        if self._detector is not None:
            self._detector.end_turn()

    def take_change(self) -> InputChange | None:
        """Return the changes since the last call, for the log; None if there are none."""
        buffer, noise = self._buffer, self._detector.noise_db if self._detector is not None else None
        if self._detector is not None and not self.speech_id:
            return self._take_silence(self._detector, noise)
        resets, begin = self._differs, 0 if self._differs else self._logged_bytes
        if not resets and begin == buffer.end_bytes:
            return None
        data = buffer.read_after(begin)
        self._logged_bytes, self._differs = buffer.end_bytes, False
        return InputChange(buffer.end_bytes, buffer.end_ms, data, resets, self.speech_id, noise)

    def _take_silence(self, detector: TurnDetector, noise: float | None) -> InputChange | None:
        buffer = self._buffer
        back_ms = floor(min(max(detector.prefix_ms, _LEAST_PREFIX_MS), buffer.held_ms))
        back = to_bytes(back_ms, buffer.format)
        end = buffer.end_bytes - back
        if not self._differs and end - self._logged_bytes < to_bytes(_LOGGED_SILENCE_MS, buffer.format):
            return None
        self._logged_bytes, self._differs = end, False
        return InputChange(end, buffer.end_ms - back_ms, resets=True, noise_db=noise)


def _hearing_model(config: SessionConfig) -> str:
    """Return the model that receives the audio; empty for a transcription session without a model."""
    return config.model or (config.transcription.model if config.transcription is not None else "")


def _detection_of(config: SessionConfig) -> tuple[object, ...]:
    """Return the settings that a detector depends on."""
    return config.turn_detection, config.input_format, _hearing_model(config)
