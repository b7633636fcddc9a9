"""Audio that a client has appended and not committed yet."""

from collections.abc import Callable

from omnibus.errors import TooLarge
from omnibus.recording.sessions import InputChange
from omnibus_gateway.openai.realtime.session import AudioFormat
from omnibus_gateway.realtime.audio_format import rate_of, sample_bytes, to_bytes
from omnibus_gateway.realtime.errors import EMPTY_COMMIT, EventRefused

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
