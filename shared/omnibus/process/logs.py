"""Log lines of many processes on one stream, each with its process."""

import os
import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)  # ANSI foreground colours, no red: red is for errors
MAX_COPY_BYTES = 8 << 20
_TAIL_LINE_COUNT = 15  # lines kept per process, for error messages
#: Prefix of a line of our services: date, time, severity and logger. It does not distinguish messages.
_PREFIX = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ [\w.]+: ")


class Log:
    """Writes ``name | line`` to ``stream``, by default stderr. On a terminal the name has a colour, unless NO_COLOR is
    set.

    A message that a service logs several times in a row is written once. The number of repetitions follows before the
    next line.
    """

    def __init__(self, stream: TextIO | None = None, environ: Mapping[str, str] | None = None) -> None:
        self._stream = stream
        environ = os.environ if environ is None else environ
        self._colour = (stream or sys.stderr).isatty() and not environ.get("NO_COLOR")
        self._colours: dict[str, int] = {}
        self._tails: dict[str, deque[str]] = {}
        self._repeats: dict[str, int] = {}
        self._width = 0
        self._copy: TextIO | None = None

    @contextmanager
    def copied_to(self, path: Path) -> Iterator[None]:
        """Also write all lines to the file ``path`` in this context. The file has no colours.

        A file of more than ``MAX_COPY_BYTES`` is replaced by a new one. The previous one is kept with the suffix
        ``.1``.
        """
        self._copy = path.open("a")
        try:
            yield
        finally:
            self._copy.close()
            self._copy = None

    def register(self, name: str) -> None:
        """Reserve a colour, and space in the first column, for ``name``."""
        self._colours.setdefault(name, _COLOURS[len(self._colours) % len(_COLOURS)])
        self._width = max(self._width, len(name))

    def write_line(self, name: str, text: str) -> None:
        """Write one line of ``name``."""
        self.register(name)
        tail = self._tails.setdefault(name, deque(maxlen=_TAIL_LINE_COUNT))
        if tail and _message(tail[-1]) == _message(text) != text:
            self._repeats[name] = self._repeats.get(name, 0) + 1
            return
        if repeats := self._repeats.pop(name, 0):
            self._write_text(name, f"(the last line {repeats} more time{'s' * (repeats > 1)})")
        tail.append(text)
        self._write_text(name, text)

    def _write_text(self, name: str, text: str) -> None:
        prefix = f"{name:<{self._width}} |"
        if self._copy is not None:
            self._write_copy(self._copy, f"{prefix} {text}\n")
        if self._colour:
            prefix = f"\x1b[{self._colours[name]}m{prefix}\x1b[0m"
        stream = self._stream or sys.stderr  # looked up now: a progress bar replaces it
        stream.write(f"{prefix} {text}\n")
        stream.flush()

    def _write_copy(self, copy: TextIO, line: str) -> None:
        try:
            copy.write(line)
            copy.flush()
            if copy.tell() > MAX_COPY_BYTES:
                path = Path(copy.name)
                path.replace(f"{path}.1")
                copy.close()
                self._copy = path.open("a")
        except OSError:  # a full disk: the stream still has the line
            return

    def last_message(self, name: str) -> str:
        """Return the last message of ``name`` without the logger's prefix. The text is empty if there is none."""
        lines = self._tails.get(name)
        return _message(lines[-1]) if lines else ""

    def tail(self, name: str) -> str:
        """Return the last lines of ``name`` for an error message. The text is empty if there are none."""
        lines = self._tails.get(name, ())
        return "; its last lines:\n" + "\n".join(f"  {line}" for line in lines) if lines else ""


def _message(line: str) -> str:
    return _PREFIX.sub("", line)
