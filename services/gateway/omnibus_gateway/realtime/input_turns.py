"""Audio that a client appends: detection of turns in it, and its log.

While the user speaks, and in sessions without turn detection, all audio is logged. Of silence, only the duration is
logged, up to audio that may be the beginning of a turn. A client that resumes the session sends the rest again.

Turn detection finds where the turns of a user begin and end, from frames with speech. Positions count all appended
audio of the session, so that events and the client's own clock agree.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import floor
from typing import NamedTuple

import numpy as np

from omnibus.errors import TooLarge
from omnibus.recording.sessions import InputChange
from omnibus_gateway.openai.realtime.session import AudioFormat, SemanticVad, ServerVad, SessionConfig, TurnDetection
from omnibus_gateway.realtime.config import rate_of, sample_bytes, to_bytes, to_pcm
from omnibus_gateway.realtime.event_sender import EMPTY_COMMIT, EventRefused
from omnibus_gateway.realtime.speech_detectors import FRAME_MS, DetectorFactory, EnergyDetector, FindDetector

#: Maximum seconds of audio in one turn.
MAX_SECONDS = 600


class InputAudioBuffer:
    """Audio bytes in order of arrival. Positions count all audio of the session, also dropped audio.

    ``on_change`` is called with the number of bytes added, negative for bytes removed.
    """

    def __init__(
        self,
        format: AudioFormat,
        on_change: Callable[[int], None] = lambda _: None,
        restored_input: InputChange | None = None,
    ) -> None:
        self.format = format
        self._changed = on_change
        self._data = bytearray(restored_input.data if restored_input is not None else b"")
        self._begin_bytes, self._begin_ms = 0, 0.0  # of the buffered audio
        if restored_input is not None:
            on_change(len(self._data))
            self._begin_bytes = restored_input.end_bytes - len(self._data)
            self._begin_ms = restored_input.end_ms - self.held_ms

    @property
    def begin_ms(self) -> float:
        """Milliseconds of audio before the buffered audio."""
        return self._begin_ms

    @property
    def end_bytes(self) -> int:
        """Total bytes appended in the session."""
        return self._begin_bytes + len(self._data)

    @property
    def end_ms(self) -> float:
        """Total milliseconds appended in the session."""
        return self._begin_ms + self._length_ms(len(self._data))

    @property
    def held_ms(self) -> float:
        """Milliseconds of buffered audio."""
        return self._length_ms(len(self._data))

    def append_audio(self, data: bytes) -> None:
        """Append audio. Raises ``TooLarge`` if the turn gets too long, and ``Overloaded``."""
        if len(self._data) + len(data) > to_bytes(MAX_SECONDS * 1000, self.format):
            raise TooLarge(f"The input audio has more than {MAX_SECONDS} s: commit it, or clear it.", param="audio")
        self._changed(len(data))
        self._data += data

    def commit_audio(self, end_ms: float | None = None) -> bytes:
        """Remove and return all whole samples up to ``end_ms``. Raises ``EventRefused`` if there are none."""
        size = len(self._data) // sample_bytes(self.format) * sample_bytes(self.format)
        if end_ms is not None:
            size = min(size, self._position(end_ms))
        if not size:
            raise EventRefused("The input audio buffer is empty: append audio before it is committed.", EMPTY_COMMIT)
        return self._take_bytes(size)

    def read_until(self, end_ms: float) -> bytes:
        """Return the audio that ``commit_audio`` would return, without removing it."""
        return bytes(self._data[: self._position(end_ms)])

    def drop_before(self, begin_ms: float) -> None:
        """Drop the audio before ``begin_ms``."""
        self._take_bytes(min(self._position(begin_ms), len(self._data)))

    def clear_audio(self) -> None:
        """Drop all audio."""
        self._take_bytes(len(self._data))

    def change_format(self, format: AudioFormat) -> None:
        """Change the format of new audio. Drops the audio in the old format: the two cannot be joined."""
        if format != self.format:
            self.clear_audio()
            self.format = format

    def read_after(self, position: int) -> bytes:
        """Return the buffered bytes after the first ``position`` bytes of the session."""
        return bytes(self._data[max(0, position - self._begin_bytes) :])

    def _position(self, ms: float) -> int:
        return to_bytes(round(max(0.0, ms - self._begin_ms)), self.format)

    def _length_ms(self, nbytes: int) -> float:
        return nbytes / sample_bytes(self.format) * 1000 / rate_of(self.format)

    def _take_bytes(self, size: int) -> bytes:
        data = bytes(self._data[:size])
        self._begin_bytes += len(data)
        self._begin_ms += self._length_ms(size)
        del self._data[:size]
        self._changed(-size)
        return data


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
