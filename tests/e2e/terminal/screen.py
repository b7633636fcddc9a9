"""A terminal of some columns, and what a command prints in it."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence

from omnibus.cli.format.tables import text_columns
from omnibus.process.tuning import die_with_parent

#: Columns and rows of the terminal.
COLUMNS, ROWS = 80, 40
_WITHIN = 60.0  # seconds
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def run_in_terminal(
    command: Sequence[str], env: Mapping[str, str], prompt: str = "", columns: int = COLUMNS
) -> tuple[int, list[str]]:
    """Return the exit code of ``command`` and the lines that it prints in a terminal of ``columns``.

    Enter is pressed after each ``prompt``.
    """
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("4H", ROWS, columns, 0, 0))
    environ = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")} | {"TERM": "xterm"}
    with subprocess.Popen(
        command, stdin=writer, stdout=writer, stderr=writer, env=environ, preexec_fn=die_with_parent()
    ) as process:
        os.close(writer)
        output = _read_all(reader, prompt.encode())
        code = process.wait(_WITHIN)
    os.close(reader)
    return code, _ESCAPES.sub("", output.decode()).replace("\r\n", "\n").splitlines()


def _read_all(reader: int, prompt: bytes) -> bytes:
    """Return what arrives until the last process closes the terminal."""
    output, answered, give_up = b"", 0, time.monotonic() + _WITHIN
    while time.monotonic() < give_up:
        if not select.select([reader], [], [], 1.0)[0]:
            continue
        try:
            part = os.read(reader, 1 << 16)
        except OSError:  # closed
            return output
        output += part
        if prompt and output.count(prompt) > answered:
            answered += 1
            os.write(reader, b"\n")
    raise TimeoutError(f"the command did not end: {output[-2000:]!r}")


def too_wide(lines: Sequence[str], columns: int = COLUMNS) -> list[str]:
    """Return the lines that do not fit."""
    return [line for line in lines if text_columns(line) > columns]
