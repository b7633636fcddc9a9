"""Mappings of shared memory at addresses for huge pages (2 MiB).

A tensor of 32 MiB is 8,192 pages of 4 KiB or 16 huge ones. The kernel repeats its work for each page: faults of
processes that map it, checks of received data. A tmpfs only has huge pages if it is mounted so. ``collapse_pages``
makes the kernel combine small pages for any mount: ``MADV_COLLAPSE`` of madvise(2), since Linux 6.1. All processes that
map the file at an aligned address then have them.
"""

import ctypes
import mmap
import os
import sys
import time
import weakref
from functools import lru_cache
from typing import Any

import numpy as np

#: Bytes of a huge page, on x86 and on ARM with small pages of 4 KiB.
HUGE_PAGE_BYTES = 2 << 20

_MADV_COLLAPSE = 25  # linux/mman.h
_MAP_FIXED, _PROT_NONE = 0x10, 0
_FAILED = ctypes.c_void_p(-1).value
#: Bytes of one call, about 20 ms, and seconds of CPU after which no further call is made: if free memory is fragmented,
#: the kernel moves other pages for each huge one.
_PIECE_BYTES, _PIECE_CPU_SECONDS = 16 << 20, 0.25


class FileMapping:
    """The first ``size`` bytes of a file, in memory at ``address``.

    ``array`` are the bytes, of uint8. The memory remains while anything refers to them.
    """

    def __init__(self, descriptor: int, size: int, *, writable: bool) -> None:
        """Map the file. Raises ``OSError`` without enough address space."""
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        memory = _map_aligned if sys.platform == "linux" else _map_anywhere
        # An array, because numpy's arrays of a read-only one cannot be made writable.
        self.array = np.frombuffer(memory(descriptor, size, protection), np.uint8)
        self.address = int(self.array.ctypes.data)

    def collapse_pages(self, start: int, end: int) -> int:
        """Combine the small pages from ``start`` to ``end`` into huge ones; returns their bytes.

        All small pages must exist. There are fewer huge pages if the kernel refuses. That is the case before Linux 6.1,
        with ``deny`` in ``shmem_enabled``, for a process without huge pages (``PR_SET_THP_DISABLE``), and without
        contiguous free memory. Small pages work as well.
        """
        first, until = _round_up(start), end // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        if sys.platform != "linux":
            return 0
        at, began = first, time.thread_time()
        while at < until and time.thread_time() - began < _PIECE_CPU_SECONDS:
            piece, began = min(until - at, _PIECE_BYTES), time.thread_time()
            if _libc().madvise(self.address + at, piece, _MADV_COLLAPSE):
                break
            at += piece
        return at - first


def _map_anywhere(descriptor: int, size: int, protection: int) -> memoryview:
    return memoryview(mmap.mmap(descriptor, size, prot=protection))


def _map_aligned(descriptor: int, size: int, protection: int) -> memoryview:
    """Map the file in reserved address space, and free the rest."""
    libc, reserved_size = _libc(), size + HUGE_PAGE_BYTES
    base = _check(libc.mmap(None, reserved_size, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0))
    address = _round_up(base)
    _check(libc.mmap(address, size, protection, mmap.MAP_SHARED | _MAP_FIXED, descriptor, 0))
    end = address + -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    for low, high in ((base, address), (end, base + reserved_size)):
        if low < high:
            libc.munmap(low, high - low)
    memory = (ctypes.c_ubyte * size).from_address(address)
    # Not at the end of the process: threads may still write there.
    weakref.finalize(memory, libc.munmap, address, size).atexit = False
    data = memoryview(memory)
    return data if protection & mmap.PROT_WRITE else data.toreadonly()


def _check(address: int | None) -> int:
    if address is None or address == _FAILED:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return address


def _round_up(nbytes: int) -> int:
    return -(-nbytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES


@lru_cache(1)
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mmap.restype = ctypes.c_void_p
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc
