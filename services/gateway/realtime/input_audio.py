"""Audio that a client has sent and not committed yet."""

from collections.abc import Callable

from omnibus.errors import TooLarge
from services.gateway.openai.realtime.session import AudioFormat
from services.gateway.realtime.audio_format import sample_bytes, to_bytes, to_milliseconds
from services.gateway.realtime.errors import EMPTY_COMMIT, EventRefused

#: Seconds of audio of one turn.
MAX_SECONDS = 600


class InputAudioBuffer:
    """Bytes in the order in which they came. ``total_ms`` counts all audio of the session, also what was dropped.

    ``changed`` is called with the bytes that it holds more, or fewer.
    """

    def __init__(self, format: AudioFormat, changed: Callable[[int], None] = lambda _: None) -> None:
        self.format = format
        self._data = bytearray()
        self._before_ms = 0
        self._changed = changed

    def __len__(self) -> int:
        return len(self._data)

    @property
    def total_ms(self) -> int:
        """Milliseconds of audio that were ever appended."""
        return self._before_ms + to_milliseconds(len(self._data), self.format)

    def append_audio(self, data: bytes) -> None:
        """Take more. Raises ``TooLarge`` for more than one turn may have, and ``Overloaded``."""
        if len(self._data) + len(data) > to_bytes(MAX_SECONDS * 1000, self.format):
            raise TooLarge(f"The input audio has more than {MAX_SECONDS} s: commit it, or clear it.", param="audio")
        self._changed(len(data))
        self._data += data

    def commit_audio(self) -> bytes:
        """All whole samples, which are not held any more. Raises ``EventRefused`` where there are none."""
        size = len(self._data) // sample_bytes(self.format) * sample_bytes(self.format)
        if not size:
            raise EventRefused("The input audio buffer is empty: append audio before it is committed.", EMPTY_COMMIT)
        return self._take_bytes(size)

    def clear_audio(self) -> None:
        """Drop all."""
        self._take_bytes(len(self._data))

    def change_format(self, format: AudioFormat) -> None:
        """Take audio of another format from now on; what is there is dropped, for it cannot be joined with it."""
        if format != self.format:
            self.clear_audio()
            self.format = format

    def _take_bytes(self, size: int) -> bytes:
        taken = bytes(self._data[:size])
        self._before_ms += to_milliseconds(size, self.format)
        del self._data[:size]
        self._changed(-size)
        return taken
