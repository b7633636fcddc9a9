"""Tool calls in a stream: one growing text that can be cut, repeated and compared.

Each call is ``CALL``, the name of the function, ``ARGUMENTS`` and the JSON text of its arguments. The head of a call,
up to ``ARGUMENTS``, is never cut.
"""

from collections.abc import Iterator
from typing import NamedTuple

#: Characters that begin a call and end the name of its function. JSON text contains neither.
CALL, ARGUMENTS = "\x1e", "\x1f"


class CallPart(NamedTuple):
    """Part of call ``number``.

    The first part has the ``name``, later ones "". Each has more of the text of the arguments.
    """

    number: int
    name: str
    arguments: str


class CallReader:
    """Reads calls from text that arrives in pieces."""

    def __init__(self) -> None:
        self.count = 0

    def read(self, text: str) -> Iterator[CallPart]:
        """Yield the parts in ``text``, the next piece."""
        more, *calls = text.split(CALL)
        if more and self.count:
            yield CallPart(self.count - 1, "", more)
        for call in calls:
            name, _, arguments = call.partition(ARGUMENTS)
            self.count += 1
            yield CallPart(self.count - 1, name, arguments)


def call_head(name: str) -> str:
    """Return the text that begins a call of ``name``."""
    return f"{CALL}{clean_text(name)}{ARGUMENTS}"


def clean_text(text: str) -> str:
    """Return ``text`` without the characters that mark calls."""
    return text.replace(CALL, "").replace(ARGUMENTS, "")


def split_calls(text: str) -> list[tuple[str, str]]:
    """Return names and arguments of all calls in a whole ``text``."""
    calls = (call.partition(ARGUMENTS) for call in text.split(CALL)[1:])
    return [(name, arguments) for name, _, arguments in calls]
