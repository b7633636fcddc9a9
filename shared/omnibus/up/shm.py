"""Shared-memory files that killed processes left."""

import fcntl
import os
import re
import stat
import time
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
#: Arenas of the nodes of a run, named after its supervisor's process.
_ARENA = re.compile(r"omnibus-local-(?P<pid>\d+)(-\d+)?")
#: A process that started later than this after the last change of an arena is another one with a reused id.
_CLOCK_SLACK_SECONDS = 1.0


def remove_shared_memory(prefix: str, directory: Path = SHARED_MEMORY) -> list[str]:
    """Remove the file ``prefix`` in ``directory``, and those that continue it with a dash. Returns their names.

    An empty prefix removes nothing. Mapped memory stays valid until it is unmapped.
    """
    if not prefix or not directory.is_dir():
        return []
    files = sorted(path for path in directory.iterdir() if f"{path.name}-".startswith(f"{prefix}-"))
    for path in files:
        path.unlink(missing_ok=True)
    return [path.name for path in files]


def remove_orphaned_arenas(directory: Path = SHARED_MEMORY) -> list[str]:
    """Remove arenas of this user's killed supervisors and return their names.

    An arena is kept while its sidecar lives, which holds a lock on the file that every container sees. It is also kept
    while its supervisor lives, which may be about to restart a sidecar.
    """
    if not directory.is_dir():
        return []
    return [path.name for path in sorted(directory.iterdir()) if _ARENA.fullmatch(path.name) and _remove_orphan(path)]


def _remove_orphan(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # a link, of another user, or gone
        return False
    try:
        status = os.fstat(descriptor)
        owner = int(path.name.split("-")[2])
        if status.st_uid != os.getuid() or not stat.S_ISREG(status.st_mode) or _is_running(owner, status.st_mtime):
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(status, path.lstat()):  # recreated meanwhile
            return False
        path.unlink()
    except OSError:  # a sidecar lives, or another process removed it
        return False
    finally:
        os.close(descriptor)
    return True


def _is_running(pid: int, since: float) -> bool:
    """Return whether process ``pid`` runs and existed at ``since``. ``since`` is in Unix seconds; ids are reused."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    if fields[0] == "Z":
        return False
    boot_time = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    start_time = boot_time + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return start_time <= since + _CLOCK_SLACK_SECONDS
