"""Shared memory without a name: another process of this user opens it while its owner keeps it open.

No file remains if a process dies: the kernel frees the memory with the last descriptor.
"""

import os
import weakref
from typing import Any

import numpy as np
import torch

#: The location of memory for another process: small JSON.
Place = dict[str, Any]


class SharedBuffer:
    """Bytes that grow as they are written; free them with ``close``, or by dropping the last reference."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("omnibus-llm", os.MFD_CLOEXEC)
        self.close = weakref.finalize(self, os.close, self._fd)
        self._size = 0

    @property
    def place(self) -> Place:
        """Current location of the memory. The inode distinguishes it from later memory under the same descriptor."""
        status = os.fstat(self._fd)
        return {"path": f"/proc/{os.getpid()}/fd/{self._fd}", "inode": status.st_ino, "nbytes": status.st_size}

    def append(self, array: np.ndarray) -> int:
        """Write the bytes of a contiguous ``array`` at the end; returns their offset."""
        offset, left = self._size, array.data.cast("B")
        while left:
            written_bytes = os.pwrite(self._fd, left, self._size)
            self._size += written_bytes
            left = left[written_bytes:]
        return offset

    def read(self, offset: int, nbytes: int) -> bytes | None:
        """Return ``nbytes`` at ``offset``, or None if they were not written."""
        buffer = bytearray()
        while len(buffer) < nbytes:
            piece = os.pread(self._fd, nbytes - len(buffer), offset + len(buffer))
            if not piece:
                return None
            buffer += piece
        return bytes(buffer)


def open_memory(place: Place, flags: int = os.O_RDONLY) -> int:
    """Open another process's memory; returns a descriptor. Raises ``FileNotFoundError`` after its owner released it."""
    fd = os.open(place["path"], flags | os.O_CLOEXEC)
    if os.fstat(fd).st_ino != place["inode"]:
        os.close(fd)
        raise FileNotFoundError(f"the memory at {place['path']} was released")
    return fd


def map_memory(place: Place, dtype: torch.dtype, shared: bool = False) -> torch.Tensor:
    """Return the numbers written before ``place`` was made, as a vector.

    Makes no copy. With ``shared``, writes to the tensor are visible to all processes. The tensor keeps no descriptor.
    Raises as ``open_memory``, and ``RuntimeError``.
    """
    fd = open_memory(place, os.O_RDWR if shared else os.O_RDONLY)
    try:
        count = place["nbytes"] // dtype.itemsize
        # Python's own mmap would keep a copy of the descriptor as long as the tensor lives.
        return torch.from_file(f"/proc/self/fd/{fd}", shared=shared, size=count, dtype=dtype)
    finally:
        os.close(fd)


def relocate_place(place: Place, fd: int) -> Place:
    """Return ``place`` as other processes find it through this process's own descriptor."""
    return {**place, "path": f"/proc/{os.getpid()}/fd/{fd}"}
