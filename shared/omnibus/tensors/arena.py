"""The shared memory of a node: one file, mapped by the sidecar and by every client.

The file is sparse at first. ``allocate_pages`` allocates the pages of a range before any client writes there. A write
to a page for which a full tmpfs has no room would kill the writer with SIGBUS.

The file is mapped with ``mmap`` over tmpfs, because ``multiprocessing.shared_memory`` of Python 3.11 unlinks segments
that another process still uses. Before each block's data is a header of ``HEADER_BYTES``, eight words of 64 bits:
magic, generation, id, nbytes, unused. Only the sidecar writes headers, except for the nbytes of a spare block, which
its producer sets. A reader compares the header with its handle, and so detects freed memory without a request.

Mappings of shared memory at addresses for huge pages (2 MiB).

A tensor of 32 MiB is 8,192 pages of 4 KiB or 16 huge ones. The kernel repeats its work for each page: faults of
processes that map it, checks of received data. A tmpfs only has huge pages if it is mounted so. ``collapse_pages``
makes the kernel combine small pages for any mount: ``MADV_COLLAPSE`` of madvise(2), since Linux 6.1. All processes that
map the file at an aligned address then have them.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import re
import sys
import time
import weakref
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from omnibus.errors import ArenaFull, Fatal, ProtocolError, StaleHandle
from omnibus.tensors.handle import Handle, numpy_dtype
from omnibus.tensors.memory import MemoryRange

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


#: Bytes before the data of each block; data is therefore aligned like blocks.
HEADER_BYTES = 64

_MAGIC = 0x3141_4E45_5241_4D4F
_WORD_BYTES = 8
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
#: Errors of a file system, a quota or a machine without free pages.
_NO_PAGES = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)


class Arena:
    """One mapping of the arena file. Build it with ``create`` (sidecar) or ``attach`` (client)."""

    def __init__(self, path: Path, size: int, descriptor: int) -> None:
        self.path = path
        self.name = path.name
        self.size = size
        self._descriptor = descriptor
        self._writing = FileMapping(descriptor, size, writable=True)
        # Readers get a mapping that the processor itself protects: a stray write cannot reach other readers.
        self._reading = FileMapping(descriptor, size, writable=False)
        self._writable, self._readable = self._writing.array.data, self._reading.array
        self._words = self._writable.cast("Q")

    @classmethod
    def create(cls, name: str, size: int, directory: str) -> "Arena":
        """Create the file ``name`` of ``size`` bytes in ``directory``.

        It replaces that of a dead predecessor. Raises ``Fatal`` if a living sidecar owns the name, if ``directory`` has
        no room, and for a name that is not a plain file name.
        """
        if not _NAME.fullmatch(name):
            raise Fatal(f"{name!r} cannot name an arena; use 1 to 200 letters, digits, '.', '_' and '-'")
        _check_capacity(directory, size)
        path = Path(directory) / name
        descriptor = _create_locked(path)
        os.ftruncate(descriptor, size)
        return cls(path, size, descriptor)

    @classmethod
    def attach(cls, path: str, size: int) -> "Arena":
        """Map the arena file of a running sidecar. Raises ``ProtocolError`` if it is not ``size`` bytes long."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            actual = os.fstat(descriptor).st_size
            if actual != size:
                raise ProtocolError(f"arena {path} has {actual} bytes and its sidecar announced {size}")
            return cls(Path(path), size, os.dup(descriptor))
        finally:
            os.close(descriptor)

    def allocate_pages(self, start: int, end: int) -> None:
        """Allocate pages for the bytes from ``start`` to ``end``; existing pages keep their content.

        The pages are huge if the kernel supports them. That takes about 1.5 s for a GiB, and 0.3 s with small ones.
        Raises ``ArenaFull`` without free pages; then nothing has changed.
        """
        try:
            os.posix_fallocate(self._descriptor, start, end - start)
        except OSError as error:
            if error.errno not in _NO_PAGES:
                raise
            raise ArenaFull(f"{self.path.parent} has no room for {end - start} more bytes: {error.strerror}") from error
        self._writing.collapse_pages(start, end)

    def write_header(self, offset: int, block: int, generation: int, nbytes: int) -> None:
        """Write the header of the data at ``offset``; the generation last, as it makes the block valid."""
        words, at = self._words, (offset - HEADER_BYTES) // _WORD_BYTES
        words[at + 2] = block
        words[at + 3] = nbytes
        words[at] = _MAGIC
        words[at + 1] = generation

    def write_nbytes(self, offset: int, nbytes: int) -> None:
        """Write a spare block's used bytes into the header at ``offset``."""
        self._words[(offset - HEADER_BYTES) // _WORD_BYTES + 3] = nbytes

    def clear_header(self, offset: int) -> None:
        """Clear the header at ``offset``, which makes the data's handles stale."""
        at = (offset - HEADER_BYTES) // _WORD_BYTES
        self._words[at + 1] = 0
        self._words[at] = 0

    def zero_bytes(self, offset: int, nbytes: int) -> None:
        """Overwrite ``nbytes`` bytes at ``offset`` with zeros."""
        np.ndarray((nbytes,), np.uint8, self._writable, offset).fill(0)

    def fileno(self) -> int:
        """Return the descriptor of the arena's file."""
        return self._descriptor

    def bytes_at(self, offset: int, nbytes: int) -> memoryview:
        """Return ``nbytes`` writable bytes at ``offset``."""
        return self._writable[offset : offset + nbytes]

    def writable_array(self, handle: Handle) -> np.ndarray:
        """Return the tensor of ``handle`` for its producer: writable, in place, zero copies."""
        return np.ndarray(handle.shape, numpy_dtype(handle.dtype), self._writable, handle.offset)

    def view(self, handle: Handle) -> np.ndarray:
        """Return the tensor of ``handle`` for a reader: read-only, zero copies.

        Raises ``ProtocolError`` if the handle is inconsistent or outside of the arena, ``StaleHandle`` if its memory
        was freed.
        """
        handle.validate()
        self.verify_handle(handle)
        try:
            return np.ndarray(handle.shape, numpy_dtype(handle.dtype), self._readable, handle.offset)
        except (ValueError, OverflowError):
            # An empty tensor agrees with its nbytes even if its other extents are absurd.
            raise ProtocolError(f"handle {handle.id}: an array cannot have the shape {handle.shape}") from None

    def verify_handle(self, handle: Handle) -> None:
        """Compare ``handle`` with the bounds and with the header in memory. Raises the errors of ``view``."""
        offset = handle.offset
        if offset % HEADER_BYTES or not HEADER_BYTES <= offset <= self.size - handle.nbytes:
            raise ProtocolError(
                f"handle {handle.id}: {handle.nbytes} bytes at {offset} are not in an arena of {self.size} bytes"
            )
        words, at = self._words, (offset - HEADER_BYTES) // _WORD_BYTES
        header = (words[at], words[at + 1], words[at + 2], words[at + 3])
        if header != (_MAGIC, handle.generation, handle.id, handle.nbytes):
            raise StaleHandle(
                f"tensor {handle.id} (generation {handle.generation}) was freed. It was released by all readers, "
                "ended, expired, or lost with its producer or sidecar; run its producer again"
            )

    def mappings(self) -> tuple[MemoryRange, MemoryRange]:
        """Return the addresses of the arena in this process: the writable and the readers' mapping."""
        writable, readable = (
            MemoryRange(each.address, self.size, is_writable)
            for each, is_writable in ((self._writing, True), (self._reading, False))
        )
        return writable, readable

    def close(self) -> None:
        """Drop the mapping; the arena cannot be used again. Views in use keep their memory until they are deleted.

        Nothing is unmapped here: arrays still in use would point to other memory.
        """
        self._words.release()
        os.close(self._descriptor)
        del self._words, self._writable, self._readable, self._writing, self._reading

    def unlink(self) -> None:
        """Remove the file, if the name still refers to this very file."""
        if _is_at(self._descriptor, self.path):
            self.path.unlink()


def _check_capacity(directory: str, size: int) -> None:
    # The arena allocates pages as it needs them: an impossible size is better rejected at once.
    room = os.statvfs(directory)
    if size > room.f_blocks * room.f_frsize:
        raise Fatal(
            f"an arena of {size} bytes does not fit into {directory}, which has {room.f_blocks * room.f_frsize}. "
            "Make the arena smaller or the tmpfs larger (volume shm in compose, medium: Memory in Kubernetes)"
        )


def _create_locked(path: Path) -> int:
    """Create a locked file at ``path``. Its process's death releases the lock, which shows whether it lives."""
    old = _open_locked(path, os.O_CREAT)
    try:
        path.unlink()
        # A new inode, not a truncated one: clients of a dead sidecar may still read views of the old file.
        return _open_locked(path, os.O_CREAT | os.O_EXCL)
    finally:
        os.close(old)


def _open_locked(path: Path, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise Fatal(f"a living sidecar owns the arena {path}; stop it or choose another arena name") from None
    if not _is_at(descriptor, path):
        os.close(descriptor)
        raise Fatal(f"another sidecar replaced the arena {path} at this moment; start this one again") from None
    return descriptor


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False
