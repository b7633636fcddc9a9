"""Progress bars, drawn only on a terminal."""

import io
import os
import pty
import re
import subprocess
import sys

import pytest

from omnibus.cli.progress import ProgressBar
from omnibus.process.logs import Log

WORK = """
import sys
from omnibus.cli.progress import ProgressBar
from omnibus.process.logs import Log

log = Log()
with ProgressBar(silent="silent" in sys.argv) as bar:
    bar.update("loading weights", 0, 2)
    log.write_line("gateway", "said meanwhile")
    bar.update("loading weights", 1, 2, "thinker")
    bar.update("loading weights", 2, 2)
print("afterwards")
"""


class StringTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run_on_terminal(*arguments: str) -> str:
    """Return the output of ``WORK`` on a terminal of 80 columns."""
    reader, writer = pty.openpty()
    environ = {**os.environ, "COLUMNS": "80", "TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen([sys.executable, "-c", WORK, *arguments], stdout=writer, stderr=writer, env=environ) as work:
        os.close(writer)
        output = b""
        try:
            while part := os.read(reader, 1 << 16):
                output += part
        except OSError:  # it has ended
            pass
        assert work.wait(60) == 0
    os.close(reader)
    return output.decode()


def test_on_a_terminal_the_bar_grows_below_what_is_logged_and_then_goes():
    output = run_on_terminal()

    assert "loading weights" in output
    assert "0/2" in output
    assert "2/2" in output
    assert re.search(r"\x1b\[2K.*gateway \| said meanwhile", output, re.DOTALL)  # the bar is cleared first
    assert output.rstrip().endswith("afterwards")
    assert "━" not in output[output.rindex("\x1b[2K") :]


def test_nothing_is_drawn_where_a_program_reads_or_wants_json():
    process = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, timeout=60, check=True)

    assert (process.stdout, process.stderr) == ("afterwards\n", "gateway | said meanwhile\n")
    assert run_on_terminal("silent").replace("\r", "") == "gateway | said meanwhile\nafterwards\n"


def test_a_terminal_that_cannot_move_its_cursor_gets_none(monkeypatch: pytest.MonkeyPatch):
    stream = StringTerminal()
    monkeypatch.setenv("TERM", "dumb")
    ProgressBar(stream).update("loading", 0, 2)

    assert stream.getvalue() == ""


def test_lines_take_its_place_where_they_are_of_use():
    stream, nothing = io.StringIO(), io.StringIO()
    ProgressBar(stream, lines=True).update("omnibus", 0, 3, "starting the system")
    ProgressBar(nothing, lines=True, silent=True).update("omnibus", 0, 3, "starting the system")

    assert stream.getvalue() == "omnibus: starting the system (0 of 3)\n"
    assert nothing.getvalue() == ""


def test_a_log_writes_to_the_stderr_of_the_moment(monkeypatch: pytest.MonkeyPatch):
    log, later = Log(environ={"NO_COLOR": "1"}), io.StringIO()
    monkeypatch.setattr(sys, "stderr", later)
    log.write_line("gateway", "hello")

    assert later.getvalue() == "gateway | hello\n"
