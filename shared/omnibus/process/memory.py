"""Memory of this process."""

import os
from pathlib import Path

_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Bytes of main memory that this process occupies, shared ones included; 0 where the system does not tell."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:  # not Linux
        return 0
