"""The shared memory of a node: one file, mapped by the sidecar and by every client.

The file is sparse at first. ``allocate_pages`` gives a range its pages before anybody writes there: to write a page for
which a full tmpfs has no room would kill the writer with SIGBUS.

Own ``mmap`` over a tmpfs file: ``multiprocessing.shared_memory`` of Python 3.11 unlinks segments that
another process still uses. Before each block's data lies a header of ``HEADER_BYTES``, eight words of
64 bits: magic, generation, id, nbytes, unused. Only the sidecar writes headers, but for the nbytes of a spare block,
which its producer knows. A reader compares them with its handle and so recognises freed memory without asking anybody.
"""

import errno
import fcntl
import os
import re
from pathlib import Path

import numpy as np

from omnibus.errors import ArenaFull, Fatal, ProtocolError, StaleHandle
from omnibus.tensors.dtypes import numpy_dtype
from omnibus.tensors.handle import Handle
from omnibus.tensors.mapping import FileMapping
from omnibus.tensors.memory import MemoryRange

#: Bytes before the data of each block; data is therefore aligned as blocks are.
HEADER_BYTES = 64

_MAGIC = 0x3141_4E45_5241_4D4F
_WORD_BYTES = 8
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
#: The file system, a quota or the machine has no more pages.
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
        """Make the file ``name`` of ``size`` bytes in ``directory``, replacing that of a dead predecessor.

        Raises ``Fatal`` when a living sidecar owns the name, when ``directory`` has no room, and for a
        name that is not a plain file name.
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
        """Map the arena file of a running sidecar. Raises ``ProtocolError`` when it is not ``size`` bytes long."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            actual = os.fstat(descriptor).st_size
            if actual != size:
                raise ProtocolError(f"arena {path} has {actual} bytes and its sidecar announced {size}")
            return cls(Path(path), size, os.dup(descriptor))
        finally:
            os.close(descriptor)

    def allocate_pages(self, start: int, end: int) -> None:
        """Give the bytes from ``start`` to ``end`` their pages; those that have some keep what is in them.

        Huge ones, where the kernel makes them. Takes about 1.5 s for a GiB, 0.3 s for small ones. Raises ``ArenaFull``
        when there are none left; then nothing has changed.
        """
        try:
            os.posix_fallocate(self._descriptor, start, end - start)
        except OSError as error:
            if error.errno not in _NO_PAGES:
                raise
            raise ArenaFull(f"{self.path.parent} has no room for {end - start} more bytes: {error.strerror}") from error
        self._writing.collapse_pages(start, end)

    def write_header(self, offset: int, block: int, generation: int, nbytes: int) -> None:
        """Write the header of the data at ``offset``; the generation last, for it makes the block valid."""
        words, at = self._words, (offset - HEADER_BYTES) // _WORD_BYTES
        words[at + 2] = block
        words[at + 3] = nbytes
        words[at] = _MAGIC
        words[at + 1] = generation

    def write_nbytes(self, offset: int, nbytes: int) -> None:
        """Write into the header of the data at ``offset`` how many bytes of a spare block are used."""
        self._words[(offset - HEADER_BYTES) // _WORD_BYTES + 3] = nbytes

    def clear_header(self, offset: int) -> None:
        """Clear the header of the data at ``offset``: from now on its handles are stale."""
        at = (offset - HEADER_BYTES) // _WORD_BYTES
        self._words[at + 1] = 0
        self._words[at] = 0

    def zero_bytes(self, offset: int, nbytes: int) -> None:
        """Overwrite ``nbytes`` bytes at ``offset`` with zeros."""
        np.ndarray((nbytes,), np.uint8, self._writable, offset).fill(0)

    def fileno(self) -> int:
        """The descriptor of the arena's file."""
        return self._descriptor

    def bytes_at(self, offset: int, nbytes: int) -> memoryview:
        """``nbytes`` writable bytes at ``offset``."""
        return self._writable[offset : offset + nbytes]

    def writable_array(self, handle: Handle) -> np.ndarray:
        """The tensor of ``handle`` for its producer: writable, in place, zero copies."""
        return np.ndarray(handle.shape, numpy_dtype(handle.dtype), self._writable, handle.offset)

    def view(self, handle: Handle) -> np.ndarray:
        """The tensor of ``handle`` for a reader: read-only, zero copies.

        Raises ``ProtocolError`` when the handle contradicts itself or leaves the arena, ``StaleHandle``
        when its memory was freed.
        """
        handle.validate()
        self.verify_handle(handle)
        try:
            return np.ndarray(handle.shape, numpy_dtype(handle.dtype), self._readable, handle.offset)
        except (ValueError, OverflowError):
            # An empty tensor agrees with its nbytes however absurd its other extents are.
            raise ProtocolError(f"handle {handle.id}: no array has the shape {handle.shape}") from None

    def verify_handle(self, handle: Handle) -> None:
        """Compare ``handle`` with the bounds and with the header in memory. Raises as ``view`` does."""
        offset = handle.offset
        if offset % HEADER_BYTES or not HEADER_BYTES <= offset <= self.size - handle.nbytes:
            raise ProtocolError(
                f"handle {handle.id}: {handle.nbytes} bytes at {offset} do not lie in an arena of {self.size} bytes"
            )
        words, at = self._words, (offset - HEADER_BYTES) // _WORD_BYTES
        found = (words[at], words[at + 1], words[at + 2], words[at + 3])
        if found != (_MAGIC, handle.generation, handle.id, handle.nbytes):
            raise StaleHandle(
                f"tensor {handle.id} (generation {handle.generation}) was freed: released by all readers, "
                "ended, expired, or lost with its producer or sidecar; run its producer again"
            )

    def mappings(self) -> tuple[MemoryRange, MemoryRange]:
        """Addresses of this process at which the arena is: the writable mapping and that of readers."""
        writable, readable = (
            MemoryRange(each.address, self.size, is_writable)
            for each, is_writable in ((self._writing, True), (self._reading, False))
        )
        return writable, readable

    def close(self) -> None:
        """Give up the mapping; the arena may not be used again. Views in use keep their memory until they go.

        Nothing is unmapped here: arrays that somebody still has would point to memory of somebody else.
        """
        self._words.release()
        os.close(self._descriptor)
        del self._words, self._writable, self._readable, self._writing, self._reading

    def unlink(self) -> None:
        """Remove the file, if the name still leads to this very file."""
        if _is_at(self._descriptor, self.path):
            self.path.unlink()


def _check_capacity(directory: str, size: int) -> None:
    # The arena takes its pages as it needs them: what could never be is better refused at once.
    room = os.statvfs(directory)
    if size > room.f_blocks * room.f_frsize:
        raise Fatal(
            f"an arena of {size} bytes does not fit into {directory}, which has {room.f_blocks * room.f_frsize}; "
            "make the arena smaller or the tmpfs larger (volume shm in compose, medium: Memory in Kubernetes)"
        )


def _create_locked(path: Path) -> int:
    """A fresh locked file at ``path``. The lock dies with its process, so it tells the living from the dead."""
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
