"""Finished videos in the media directory, with thumbnails, and copies from peers.

Copies of videos from other gateways, for downloads from this one.
"""

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Protocol

from omnibus.bus.media_messages import MediaAnswer
from omnibus.encoding import video
from omnibus.errors import Forbidden, NotFound, OmnibusError, Overloaded, ProtocolError, StorageFull, storage_error
from omnibus.service import until_cancelled
from omnibus.settings import GatewaySettings
from omnibus_gateway.http.content import Content
from omnibus_gateway.media.peers import KeptFile, MediaPeers
from omnibus_gateway.openai.videos import Variant
from omnibus_gateway.videos.job_payload import video_not_found

#: Kind of videos between gateways, and the key of their expiry in answers: see ``expiry_time``.
VIDEO, UNTIL = "video", "until"
#: Suffix of incomplete files.
DRAFT = ".draft"


class VideoCopies:
    """Copies each file once for all its clients, with bounded memory.

    ``make_room`` is called with the size of each file before it is copied.
    """

    def __init__(self, peers: MediaPeers, make_room: Callable[[int], None]) -> None:
        self._peers = peers
        self._make_room = make_room
        self._running: dict[str, asyncio.Task[None]] = {}

    async def fetch_file(self, path: Path) -> bool:
        """Copy a file to ``path`` from a gateway that has its name; False if none has.

        Raises as ``MediaPeers.copy`` and ``make_room``, and ``StorageFull``. The copy continues if the client
        disconnects.
        """
        task = self._running.get(path.name)
        if task is None:
            task = self._running[path.name] = asyncio.get_running_loop().create_task(self._copy_file(path))
            task.add_done_callback(lambda _: self._running.pop(path.name, None))
        try:
            await asyncio.shield(task)
        except NotFound:
            return False
        return True

    async def expiry_time(self, name: str) -> float:
        """Return the Unix seconds until which another gateway keeps a file; 0 if none has it."""
        answer = await self._peers.find(VIDEO, name)
        return _expiry_time(answer) if answer is not None else 0.0

    async def close(self) -> None:
        for task in tuple(self._running.values()):
            await until_cancelled(task)

    async def _copy_file(self, path: Path) -> None:
        draft = path.with_name(f"{path.stem}.{token_hex(4)}{DRAFT}")
        try:
            with await asyncio.to_thread(_open_draft, draft) as file:

                def start(answer: MediaAnswer) -> None:
                    self._make_room(answer.nbytes)
                    file.seek(0)
                    file.truncate()

                answer = await self._peers.copy(VIDEO, path.name, start, file.write)
            until = _expiry_time(answer)
            await asyncio.to_thread(_complete_draft, draft, path, until)
        except OSError as error:
            raise storage_error("the media directory", error) from error
        finally:
            draft.unlink(missing_ok=True)


def _open_draft(path: Path) -> BinaryIO:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb")


def _complete_draft(draft: Path, path: Path, until: float) -> None:
    os.utime(draft, (until, until))
    draft.rename(path)


def _expiry_time(answer: MediaAnswer) -> float:
    until = answer.about.get(UNTIL)
    if not isinstance(until, int | float):
        raise ProtocolError(f"gateway {answer.gateway} does not report how long it keeps a video")
    return float(until)


log = logging.getLogger(__name__)

#: Content types and file extensions.
MIME: dict[Variant, str] = {"video": video.MIME, "thumbnail": "image/webp"}
FILE_EXTENSIONS: dict[Variant, str] = {"video": ".mp4", "thumbnail": ".webp"}
#: Names by which other gateways can read files. Nothing else becomes a path.
_NAME = re.compile(r"(video_[0-9a-f]{48})\.(mp4|webp)")
#: Seconds that files outlive their jobs, and that drafts are kept after their last write.
FILE_GRACE_SECONDS, DRAFT_TTL_SECONDS = 60.0, 3600.0
#: Seconds until a client may retry after a rejection for lack of space.
RETRY_AFTER_SECONDS = 60.0


class VideoFiles(Protocol):
    """Storage of videos: a directory (``VideoStorage``) or a bucket (``videos.objects.VideoObjects``)."""

    async def check_capacity(self, own: Collection[str] | None = None) -> None:
        """Check that there is room for another video. Raises ``OmnibusError``."""

    async def new_draft(self, id: str) -> Path:
        """Return the path of a draft file for a new video."""

    async def store_video(self, id: str, draft: Path, thumbnail: bytes, seconds: float) -> None:
        """Store a draft as video ``id``, for ``seconds``. Raises ``OmnibusError``."""

    async def find_file(self, id: str, variant: Variant) -> Path | Content:
        """Return a finished video. Raises ``NotFound``."""

    async def expiry_time(self, id: str) -> float:
        """Return the Unix seconds until which video ``id`` is kept; 0 without one. Raises ``StoreUnavailable``."""

    async def remove_files(self, id: str) -> None:
        """Remove the files of ``id`` if there are any."""

    async def close(self) -> None:
        """Cancel copies in progress."""


class VideoStorage:
    """Stores videos by id, in a directory. The modification time of a file is its expiry.

    Without a media directory, it stores none. With ``peers``, it copies videos of other gateways on request.
    """

    def __init__(self, settings: GatewaySettings, peers: MediaPeers | None = None) -> None:
        self._copies = VideoCopies(peers, self._make_room) if peers is not None else None
        self._root = Path(settings.media_dir) / "videos"
        self._on = bool(settings.media_dir)
        self._limit = settings.video_bytes
        self._tenant_limit = int(settings.video_bytes * settings.tenant_share)

    async def check_capacity(self, own: Collection[str] | None = None) -> None:
        """Check that there is room for another video; ``own`` are the ids of its tenant's videos, if it has a share.

        Raises ``Forbidden`` without a media directory, ``Overloaded`` without room.
        """
        if not self._on:
            raise Forbidden("this gateway cannot store videos: set OMNIBUS_GATEWAY_MEDIA_DIR")
        if await asyncio.to_thread(self._used_bytes) > self._limit:
            raise Overloaded("stored videos use all available space: delete some", retry_after=RETRY_AFTER_SECONDS)
        if own is not None and await asyncio.to_thread(self._video_bytes, own) > self._tenant_limit:
            raise Overloaded(
                "your videos use all the space of one tenant: delete some", retry_after=RETRY_AFTER_SECONDS
            )

    async def new_draft(self, id: str) -> Path:
        """Return the path of a draft file for a new video."""
        try:
            await asyncio.to_thread(self._root.mkdir, mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error("the media directory", error) from error
        return self._root / f"{id}.{token_hex(4)}{DRAFT}"

    async def store_video(self, id: str, draft: Path, thumbnail: bytes, seconds: float) -> None:
        """Store a draft as video ``id``, for ``seconds``."""
        try:
            await asyncio.to_thread(self._store_files, id, draft, thumbnail, time.time() + seconds + FILE_GRACE_SECONDS)
        except OSError as error:
            raise storage_error("the media directory", error) from error

    async def find_file(self, id: str, variant: Variant) -> Path:
        """Return the file of a finished video. Raises ``NotFound``, and as ``VideoCopies.fetch_file``."""
        path = self._file_path(id, variant)
        if not self._on:
            raise video_not_found()
        there = await asyncio.to_thread(path.is_file)
        if not there and (self._copies is None or not await self._copies.fetch_file(path)):
            raise video_not_found()
        return path

    async def locate(self, name: str) -> KeptFile | None:
        """Return a file of this directory for other gateways."""
        if not self._on or not _NAME.fullmatch(name):
            return None
        path = self._root / name
        try:
            return KeptFile(path, {UNTIL: (await asyncio.to_thread(path.stat)).st_mtime})
        except OSError:
            return None

    async def close(self) -> None:
        if self._copies is not None:
            await self._copies.close()

    async def expiry_time(self, id: str) -> float:
        """Return the Unix seconds until which any gateway keeps video ``id``; 0 without one."""
        if not self._on:
            return 0.0
        path = self._file_path(id, "video")
        try:
            until = (await asyncio.to_thread(path.stat)).st_mtime
        except OSError:
            until = await self._peer_expiry(path.name)
        return max(0.0, until - FILE_GRACE_SECONDS)

    async def remove_files(self, id: str) -> None:
        """Remove the files of ``id`` if there are any."""
        if self._on:
            await asyncio.to_thread(self._remove_files, id)

    def _file_path(self, id: str, variant: Variant) -> Path:
        return self._root / f"{id}{FILE_EXTENSIONS[variant]}"

    def _store_files(self, id: str, draft: Path, thumbnail: bytes, until: float) -> None:
        self._remove_expired()
        picture = draft.with_suffix(f".picture{DRAFT}")
        files: dict[Variant, Path] = {"thumbnail": picture, "video": draft}  # video last: it makes the video complete
        try:
            with open(os.open(picture, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
                file.write(thumbnail)
            for path in files.values():
                os.utime(path, (until, until))
        except OSError:
            picture.unlink(missing_ok=True)
            raise
        for variant, path in files.items():
            path.rename(self._file_path(id, variant))

    async def _peer_expiry(self, name: str) -> float:
        try:
            return await self._copies.expiry_time(name) if self._copies is not None else 0.0
        except OmnibusError as error:  # then the video counts as not made, as if its gateway were gone
            log.warning("other gateways do not report whether they have %s: %s", name, error)
            return 0.0

    def _make_room(self, nbytes: int) -> None:
        """Remove expired files. Raises ``StorageFull`` if there is still no room for ``nbytes``."""
        self._remove_expired()
        if self._used_bytes() + nbytes > self._limit:
            raise StorageFull(f"there is no room for a copy of {nbytes} bytes of this video, which another gateway has")

    def _remove_files(self, id: str) -> None:
        for variant in FILE_EXTENSIONS:
            self._file_path(id, variant).unlink(missing_ok=True)

    def _remove_expired(self) -> None:
        """Remove expired files and abandoned drafts."""
        now = time.time()
        for path, status in self._list_files():
            if status.st_mtime < (now - DRAFT_TTL_SECONDS if path.suffix == DRAFT else now):
                path.unlink(missing_ok=True)

    def _video_bytes(self, ids: Collection[str]) -> int:
        total = 0
        for id in ids:
            with suppress(FileNotFoundError):  # it is not made yet
                total += self._file_path(id, "video").stat().st_size
        return total

    def _used_bytes(self) -> int:
        return sum(status.st_size for _, status in self._list_files())

    def _list_files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self._root.glob("video_*"):
            with suppress(FileNotFoundError):  # another gateway has renamed or removed it
                yield path, path.stat()
