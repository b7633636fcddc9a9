"""Videos that are made, each with a picture of it, below the media directory; others' are copied to it."""

import asyncio
import logging
import os
import re
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Protocol

from omnibus.encoding import video
from omnibus.errors import Forbidden, OmnibusError, Overloaded, StorageFull, storage_error
from omnibus.settings import GatewaySettings
from services.gateway.http.ranges import Content
from services.gateway.media.peer_files import KeptFile
from services.gateway.media.peers import MediaPeers
from services.gateway.openai.videos import Variant
from services.gateway.videos.copies import DRAFT, UNTIL, VideoCopies
from services.gateway.videos.job_payload import video_not_found

log = logging.getLogger(__name__)

#: Content types, and how the files' names end.
MIME: dict[Variant, str] = {"video": video.MIME, "thumbnail": "image/webp"}
FILE_EXTENSIONS: dict[Variant, str] = {"video": ".mp4", "thumbnail": ".webp"}
#: Names by which other gateways may read files. Nothing else becomes a path.
_NAME = re.compile(r"(video_[0-9a-f]{48})\.(mp4|webp)")
#: Seconds that files outlive their jobs, and that a draft may lie untouched.
FILE_GRACE_SECONDS, DRAFT_TTL_SECONDS = 60.0, 3600.0
#: Seconds until a client that was refused for want of room may try again.
RETRY_AFTER_SECONDS = 60.0


class VideoFiles(Protocol):
    """Place of videos: a directory (``VideoStorage``) or a bucket (``videos.objects.VideoObjects``)."""

    async def check_capacity(self, own: Collection[str] | None = None) -> None:
        """Check that there is room for one more. Raises ``OmnibusError``."""

    async def new_draft(self, id: str) -> Path:
        """Return the path of a new draft file, for a video that is being made."""

    async def store_video(self, id: str, draft: Path, thumbnail: bytes, seconds: float) -> None:
        """Make a draft the video of ``id``, for ``seconds``. Raises ``OmnibusError``."""

    async def find_file(self, id: str, variant: Variant) -> Path | Content:
        """A video that is made. Raises ``NotFound``."""

    async def expiry_time(self, id: str) -> float:
        """Unix seconds until which the video of ``id`` is kept; 0 without one. Raises ``StoreUnavailable``."""

    async def remove_files(self, id: str) -> None:
        """Remove the files of ``id`` if there are any."""

    async def close(self) -> None:
        """End what goes on."""


class VideoStorage:
    """Keeps videos by their ids; without a media directory none. The time of a file is the end of its own.

    With ``peers`` videos that other gateways have made are copied here when they are asked for.
    """

    def __init__(self, settings: GatewaySettings, peers: MediaPeers | None = None) -> None:
        self._copies = VideoCopies(peers, self._make_room) if peers is not None else None
        self._root = Path(settings.media_dir) / "videos"
        self._on = bool(settings.media_dir)
        self._limit = settings.video_bytes
        self._tenant_limit = int(settings.video_bytes * settings.tenant_share)

    async def check_capacity(self, own: Collection[str] | None = None) -> None:
        """Check that there is room for one more; ``own`` are the ids of its tenant's videos, if it has a share.

        Raises ``Forbidden`` when no videos are kept, ``Overloaded`` when there is no room for more.
        """
        if not self._on:
            raise Forbidden("this gateway makes no videos: it has nowhere to keep them, set OMNIBUS_GATEWAY_MEDIA_DIR")
        if await asyncio.to_thread(self._used_bytes) > self._limit:
            raise Overloaded("the kept videos take all the room there is: delete some", retry_after=RETRY_AFTER_SECONDS)
        if own is not None and await asyncio.to_thread(self._video_bytes, own) > self._tenant_limit:
            raise Overloaded(
                "your videos take the room that one tenant may have: delete some", retry_after=RETRY_AFTER_SECONDS
            )

    async def new_draft(self, id: str) -> Path:
        """Return the path of a new draft file, for a video that is being made."""
        try:
            await asyncio.to_thread(self._root.mkdir, mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error("the media directory", error) from error
        return self._root / f"{id}.{token_hex(4)}{DRAFT}"

    async def store_video(self, id: str, draft: Path, thumbnail: bytes, seconds: float) -> None:
        """Make a draft the video of ``id``, for ``seconds``."""
        try:
            await asyncio.to_thread(self._store_files, id, draft, thumbnail, time.time() + seconds + FILE_GRACE_SECONDS)
        except OSError as error:
            raise storage_error("the media directory", error) from error

    async def find_file(self, id: str, variant: Variant) -> Path:
        """The file of a video that is made. Raises ``NotFound``, and as ``VideoCopies.fetch_file`` does."""
        path = self._file_path(id, variant)
        if not self._on:
            raise video_not_found()
        there = await asyncio.to_thread(path.is_file)
        if not there and (self._copies is None or not await self._copies.fetch_file(path)):
            raise video_not_found()
        return path

    async def locate(self, name: str) -> KeptFile | None:
        """A file in this directory, for other gateways."""
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
        """Unix seconds until which the video of ``id`` is kept, here or by another gateway; 0 without one."""
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
        made: dict[Variant, Path] = {"thumbnail": picture, "video": draft}  # with the video it is complete
        try:
            with open(os.open(picture, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
                file.write(thumbnail)
            for path in made.values():
                os.utime(path, (until, until))
        except OSError:
            picture.unlink(missing_ok=True)
            raise
        for variant, path in made.items():
            path.rename(self._file_path(id, variant))

    async def _peer_expiry(self, name: str) -> float:
        try:
            return await self._copies.expiry_time(name) if self._copies is not None else 0.0
        except OmnibusError as error:  # it counts as not made, as if its gateway were gone
            log.warning("other gateways do not say whether they have %s: %s", name, error)
            return 0.0

    def _make_room(self, nbytes: int) -> None:
        """Raises ``StorageFull`` when there is no room for so many bytes beside what is kept."""
        self._remove_expired()
        if self._used_bytes() + nbytes > self._limit:
            raise StorageFull(f"another gateway keeps this video, and here is no room for a copy of {nbytes} bytes")

    def _remove_files(self, id: str) -> None:
        for variant in FILE_EXTENSIONS:
            self._file_path(id, variant).unlink(missing_ok=True)

    def _remove_expired(self) -> None:
        """Remove what has expired, and drafts that nobody goes on with."""
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
            with suppress(FileNotFoundError):  # another gateway has renamed or removed it meanwhile
                yield path, path.stat()
