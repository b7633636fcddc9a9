"""Media and long inputs by content hash, for replays of recorded invocations."""

import asyncio
import hashlib
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from omnibus.errors import NotFound, ProtocolError, storage_error
from omnibus_gateway.media.peers import MediaPeers

T = TypeVar("T")

#: A content hash in text form. Records return from clients: nothing else may become a path.
_SHA256 = re.compile(r"[0-9a-f]{64}")
#: The kind of recorded content in messages between gateways, and the most bytes that one reads from another.
BLOB = "blob"
_MAX_PEER_BYTES = 256 << 20
#: Flags for a new file, which has no readers yet.
_CREATE = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
#: Valid owners of files.
_OWNER = re.compile(r"[0-9a-z]{0,32}")


class MediaStore:
    """A directory of files named by the SHA-256 of their content; the oldest are evicted when it is full.

    An empty ``directory`` keeps nothing. Several gateways may share one directory. Files may have an ``owner`` (a word
    of letters and digits): then the oldest file of the owner with the most bytes is evicted first. With ``peers``,
    content without an owner that is missing here is read from other gateways.
    """

    def __init__(self, directory: str, limit: int, peers: MediaPeers | None = None) -> None:
        self.peers = peers
        self._root = Path(directory)
        self._keeps = bool(directory)
        self._limit = limit
        self._total = -1
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="media-keep")

    def put_nowait(self, sha256: str, data: bytes) -> None:
        """Keep ``data`` without waiting."""
        if self._keeps:
            self._writer.submit(self._write_file, self._root / sha256[:2] / sha256, data)

    async def store(self, sha256: str, data: bytes, owner: str = "") -> None:
        """Keep ``data``; it is stored when this returns. Raises ``StorageFull``, and ``Fatal`` if files cannot be
        written.
        """
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._writer, self._write_file, self._file_path(sha256, owner), data
            )
        except OSError as error:
            raise storage_error("the media directory", error) from error

    def run_in_writer(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Run ``work`` in the thread that writes this directory's files in turn."""
        return asyncio.get_running_loop().run_in_executor(self._writer, work)

    async def get(self, sha256: str, owner: str = "") -> bytes:
        """Return content; raises ``NotFound`` if it was never kept or is evicted.

        Raises as ``MediaPeers.read`` as well.
        """
        path = await self.locate(sha256, owner)
        try:
            if path is not None:
                return await asyncio.get_running_loop().run_in_executor(self._writer, path.read_bytes)
            if self.peers is not None and not owner and _SHA256.fullmatch(sha256):
                return await self._read_peer(self.peers, sha256)
            raise FileNotFoundError(sha256)
        except (FileNotFoundError, NotFound) as error:
            raise NotFound(
                f"the recorded input {sha256[:12]} is not kept here: record in `full` mode with a media directory"
            ) from error

    async def locate(self, sha256: str, owner: str = "") -> Path | None:
        """Return the file of content in this directory, even while being written."""
        if not self._keeps or not _SHA256.fullmatch(sha256) or not _OWNER.fullmatch(owner):
            return None
        path = self._file_path(sha256, owner)
        there = await asyncio.get_running_loop().run_in_executor(self._writer, path.is_file)
        return path if there else None

    async def _read_peer(self, peers: MediaPeers, sha256: str) -> bytes:
        """Return content from another gateway, and keep it here."""
        _, data = await peers.read(BLOB, sha256, min(self._limit, _MAX_PEER_BYTES))
        if await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest()) != sha256:
            raise ProtocolError(
                f"another gateway sent other bytes than those of {sha256[:12]}: its disk may be damaged"
            )
        self.put_nowait(sha256, data)
        return data

    def close(self) -> None:
        self._writer.shutdown(wait=True)

    def _file_path(self, sha256: str, owner: str) -> Path:
        return self._root / sha256[:2] / (f"{sha256}-{owner}" if owner else sha256)

    def _write_file(self, path: Path, data: bytes) -> None:
        with suppress(FileNotFoundError):
            os.utime(path)  # its age counts from its last use
            return
        self.write_new(str(path), (data,))

    def write_new(self, path: str, parts: Sequence[bytes]) -> None:
        """Write a file of this directory, in the writer's thread (``run_in_writer``). Raises ``OSError``."""
        draft = f"{path}.{os.getpid()}"
        try:
            descriptor = os.open(draft, _CREATE, 0o600)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            descriptor = os.open(draft, _CREATE, 0o600)
        try:
            _write_parts(descriptor, parts)
        finally:
            os.close(descriptor)
        os.rename(draft, path)
        self._total = self._total_bytes() if self._total < 0 else self._total + sum(map(len, parts))
        if self._total > self._limit:
            self._evict_oldest()

    def _list_files(self) -> list[tuple[float, int, Path]]:
        """Return age, size and path of all files."""
        files = []
        for path in self._root.glob("??/*"):
            with suppress(FileNotFoundError):  # another gateway has renamed or removed it meanwhile
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
        return files

    def _total_bytes(self) -> int:
        return sum(size for _, size, _ in self._list_files())

    def _evict_oldest(self) -> None:
        """Remove the oldest files until three quarters of the limit remain."""
        files_by_owner: dict[str, deque[tuple[int, Path]]] = {}
        totals: Counter[str] = Counter()
        for _, size, path in sorted(self._list_files()):
            owner = path.name.partition("-")[2]
            files_by_owner.setdefault(owner, deque()).append((size, path))
            totals[owner] += size
        self._total = totals.total()
        while self._total > self._limit * 3 // 4:
            largest = max(totals, key=totals.__getitem__)
            size, path = files_by_owner[largest].popleft()
            path.unlink(missing_ok=True)
            totals[largest] -= size
            self._total -= size


def _write_parts(descriptor: int, parts: Sequence[bytes]) -> None:
    """Write ``parts``, usually with one system call."""
    written_bytes = os.writev(descriptor, parts)
    if written_bytes < sum(map(len, parts)):  # the kernel writes at most 2 GiB at once, and less on a nearly full disk
        with open(descriptor, "wb", closefd=False) as file:
            file.write(b"".join(parts)[written_bytes:])
