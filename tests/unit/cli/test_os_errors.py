"""OS errors that users can fix are printed as one line; all others are tracebacks."""

import errno
import subprocess
import sys

import pytest

from omnibus.cli.os_errors import PIPE_CLOSED_EXIT_CODE, explain_os_error
from omnibus.errors import Rejected


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EACCES, "Permission denied", "/root/x"), "/root/x: Permission denied: HOME, XDG_RUNTIME_DIR"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device: free some"),
        (OSError(errno.EMFILE, "Too many open files", "/x"), "Too many open files: raise the limit with `ulimit -n`"),
    ],
)
def test_what_people_can_mend_is_said_with_what_to_do(error: OSError, words: str):
    user_error = explain_os_error(error)

    assert user_error is not None
    assert user_error.message.startswith(words)
    assert isinstance(user_error, Rejected) == (error.errno != errno.ENOSPC)  # a retry may succeed


@pytest.mark.parametrize("error", [OSError(errno.ENOENT, "No such file", "/x"), OSError("anything"), OSError()])
def test_what_may_be_a_fault_of_ours_is_left(error: OSError):
    assert explain_os_error(error) is None


def test_a_reader_that_has_ended_is_no_traceback():
    command = f"{sys.executable} -m omnibus.cli settings | true; exit ${{PIPESTATUS[0]}}"
    process = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)

    assert (process.returncode, process.stderr) == (PIPE_CLOSED_EXIT_CODE, "")


@pytest.mark.parametrize("name", ["omnibus.cli.access", "omnibus.cli.settings"])
def test_an_interrupt_while_modules_are_imported_is_no_traceback(name: str):
    interrupt = f"""
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from omnibus.cli import main
sys.exit(main(["settings"]))
"""
    process = subprocess.run([sys.executable, "-c", interrupt], capture_output=True, text=True, check=False, timeout=60)

    assert (process.returncode, process.stdout, process.stderr) == (130, "", "")
