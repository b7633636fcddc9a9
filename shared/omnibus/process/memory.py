"""Memory of this process."""

import os
from pathlib import Path

_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Return this process's main memory in bytes, including shared memory. 0 if the system does not report it."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:  # not Linux
        return 0
