"""Output that the client already has: a gateway that regenerates the response skips it.

The number of tokens per event depends on the load of the executor. Text, calls and audio are therefore compared by
their concatenation.
"""

from collections import deque
from collections.abc import Iterable

from omnibus.errors import CannotContinue
from omnibus_gateway.realtime.conversation import ConversationItem


class KnownOutput:
    """Output of ``items`` that the new response has not repeated yet."""

    def __init__(self, items: Iterable[ConversationItem] = ()) -> None:
        self._said: deque[tuple[str, str]] = deque()  # kind, and the rest of its text
        self._audio_bytes = 0
        for item in items:
            if item.type == "function_call":
                self._said += [("call", item.name), ("arguments", item.text)]
            else:
                self._said += [("text", part.text) for part in item.parts]
                self._audio_bytes += sum(len(part.audio) for part in item.parts)

    @classmethod
    def of_text(cls, text: str) -> "KnownOutput":
        """Create known output with ``text`` alone."""
        output = cls()
        output._said.append(("text", text))
        return output

    def skip_text(self, delta: str) -> str:
        """Return the new part of a text delta."""
        return self._skip("text", delta)

    def skip_arguments(self, delta: str) -> str:
        """Return the new part of an arguments delta."""
        return self._skip("arguments", delta)

    def skip_call(self, name: str) -> bool:
        """Return True if the call that begins is known."""
        self._drop_passed()
        if not self._said:
            return False
        if self._said.popleft() != ("call", name):
            raise _diverged_error()
        return True

    def skip_audio(self, data: bytes) -> bytes:
        """Return the new part of an audio delta."""
        known_bytes = min(self._audio_bytes, len(data))
        self._audio_bytes -= known_bytes
        return data[known_bytes:]

    def check_passed(self) -> None:
        """Raise ``CannotContinue`` if the response has ended before all known output."""
        self._drop_passed()
        if self._said or self._audio_bytes:
            raise _diverged_error()

    def _skip(self, kind: str, delta: str) -> str:
        while delta:
            self._drop_passed()
            if not self._said:
                return delta
            known_kind, text = self._said[0]
            length = min(len(text), len(delta))
            if known_kind != kind or text[:length] != delta[:length]:
                raise _diverged_error()
            self._said[0] = known_kind, text[length:]
            delta = delta[length:]
        return ""

    def _drop_passed(self) -> None:
        while self._said and not self._said[0][1] and self._said[0][0] != "call":
            self._said.popleft()


def _diverged_error() -> CannotContinue:
    return CannotContinue("the regenerated response differs from the first one: create another response")
