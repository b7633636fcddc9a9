"""Output that the client of a response has already: left out when another gateway makes the response once more.

How many tokens share an event depends on how busy an executor is, so text, calls and audio are compared by what they
add up to.
"""

from collections import deque
from collections.abc import Iterable

from omnibus.errors import CannotContinue
from services.gateway.realtime.conversation import ConversationItem


class KnownOutput:
    """The output in ``items``, of which nothing has been made again yet."""

    def __init__(self, items: Iterable[ConversationItem] = ()) -> None:
        self._said: deque[tuple[str, str]] = deque()  # kind, and what is left of it
        self._audio_bytes = 0
        for item in items:
            if item.type == "function_call":
                self._said += [("call", item.name), ("arguments", item.text)]
            else:
                self._said += [("text", part.text) for part in item.parts]
                self._audio_bytes += sum(len(part.audio) for part in item.parts)

    @classmethod
    def of_text(cls, text: str) -> "KnownOutput":
        """Output that is ``text`` alone."""
        made = cls()
        made._said.append(("text", text))
        return made

    def skip_text(self, delta: str) -> str:
        """The new part of more text."""
        return self._skip("text", delta)

    def skip_arguments(self, delta: str) -> str:
        """The new part of more arguments of a call."""
        return self._skip("arguments", delta)

    def skip_call(self, name: str) -> bool:
        """Return whether the call that begins is known."""
        self._drop_passed()
        if not self._said:
            return False
        if self._said.popleft() != ("call", name):
            raise _diverged_error()
        return True

    def skip_audio(self, data: bytes) -> bytes:
        """The new part of more audio."""
        known = min(self._audio_bytes, len(data))
        self._audio_bytes -= known
        return data[known:]

    def check_passed(self) -> None:
        """Raises ``CannotContinue`` if the response is over before all that is known of it has come."""
        self._drop_passed()
        if self._said or self._audio_bytes:
            raise _diverged_error()

    def _skip(self, kind: str, delta: str) -> str:
        while delta:
            self._drop_passed()
            if not self._said:
                return delta
            known, text = self._said[0]
            length = min(len(text), len(delta))
            if known != kind or text[:length] != delta[:length]:
                raise _diverged_error()
            self._said[0] = known, text[length:]
            delta = delta[length:]
        return ""

    def _drop_passed(self) -> None:
        while self._said and not self._said[0][1] and self._said[0][0] != "call":
            self._said.popleft()


def _diverged_error() -> CannotContinue:
    return CannotContinue("the response came out differently this time, so it cannot be continued: create another one")
