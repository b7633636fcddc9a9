"""Errors of the operating system that people can mend: one line instead of a traceback."""

import errno
import os
import sys

from omnibus.errors import BadRequest, OmnibusError, StorageFull

#: Exit code of a command whose reader has ended, as of one that SIGPIPE ends.
PIPE_CLOSED_EXIT_CODE = 141
_PLACES = "HOME, XDG_RUNTIME_DIR and TMPDIR name the places that commands write to"
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_TOO_MANY = {errno.EMFILE, errno.ENFILE}


def explain_os_error(error: OSError) -> OmnibusError | None:
    """``error`` with what to do about it; None for one that is no matter of this machine's files."""
    where = f"{os.fspath(error.filename)}: " if isinstance(error.filename, str | os.PathLike) else ""
    if error.errno in _FORBIDDEN and where:
        return BadRequest(f"{where}{error.strerror}: {_PLACES}")
    if error.errno in _FULL:
        return StorageFull(f"{where}{error.strerror}: free some; {_PLACES}")
    if error.errno in _TOO_MANY:
        return BadRequest(f"{error.strerror}: raise the limit with `ulimit -n`, for example to 65536")
    return None


def ignore_closed_pipe() -> None:
    """Let nothing more be written to a reader that has ended, as ``head`` does."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
