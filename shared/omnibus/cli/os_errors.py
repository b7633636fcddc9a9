"""Errors of the operating system that people can fix. They are printed as one line instead of a traceback."""

import errno
import os
import sys

from omnibus.errors import BadRequest, OmnibusError, StorageFull

#: Exit code of a command whose pipe is closed, as if SIGPIPE had ended it.
PIPE_CLOSED_EXIT_CODE = 141
_PLACES = "HOME, XDG_RUNTIME_DIR and TMPDIR name the places that commands write to"
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}
_FULL = {errno.ENOSPC, errno.EDQUOT}
_TOO_MANY = {errno.EMFILE, errno.ENFILE}


def explain_os_error(error: OSError) -> OmnibusError | None:
    """Return ``error`` with its remedy, or None. None means that it does not concern this machine's files."""
    where = f"{os.fspath(error.filename)}: " if isinstance(error.filename, str | os.PathLike) else ""
    if error.errno in _FORBIDDEN and where:
        return BadRequest(f"{where}{error.strerror}: {_PLACES}")
    if error.errno in _FULL:
        return StorageFull(f"{where}{error.strerror}: free some space ({_PLACES})")
    if error.errno in _TOO_MANY:
        return BadRequest(f"{error.strerror}: raise the limit with `ulimit -n`, for example to 65536")
    return None


def ignore_closed_pipe() -> None:
    """Discard further output, as the pipe is closed."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
