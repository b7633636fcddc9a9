"""Calls of tools inside of a stream: one text that grows, so that it can be cut, repeated and compared as any other.

Each call is ``CALL``, the name of the function, ``ARGUMENTS`` and the JSON text of its arguments. The head of a call,
up to ``ARGUMENTS``, is never cut.
"""

from collections.abc import Iterator
from typing import NamedTuple

#: What begins a call, and what ends the name of its function. JSON text holds neither of them.
CALL, ARGUMENTS = "\x1e", "\x1f"


class CallPart(NamedTuple):
    """Part of call ``number``: with its first one the ``name``, else "", and more of the arguments' text."""

    number: int
    name: str
    arguments: str


class CallReader:
    """Reads the text of calls as it grows."""

    def __init__(self) -> None:
        self.count = 0

    def read(self, text: str) -> Iterator[CallPart]:
        """Yield the parts in ``text``, which follows what was read before."""
        more, *begun = text.split(CALL)
        if more and self.count:
            yield CallPart(self.count - 1, "", more)
        for call in begun:
            name, _, arguments = call.partition(ARGUMENTS)
            self.count += 1
            yield CallPart(self.count - 1, name, arguments)


def call_head(name: str) -> str:
    """The text that begins a call of ``name``."""
    return f"{CALL}{clean_text(name)}{ARGUMENTS}"


def clean_text(text: str) -> str:
    """``text`` without what marks calls."""
    return text.replace(CALL, "").replace(ARGUMENTS, "")


def split_calls(text: str) -> list[tuple[str, str]]:
    """Names and arguments of all calls in a whole ``text``."""
    found = (call.partition(ARGUMENTS) for call in text.split(CALL)[1:])
    return [(name, arguments) for name, _, arguments in found]
