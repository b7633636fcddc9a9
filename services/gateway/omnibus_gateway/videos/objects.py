"""Finished videos in a bucket: any gateway serves them, even if their own gateway is gone.

An object is ``results/videos/<id>.mp4``, with a thumbnail next to it. It is kept for ``settings.video_kept`` seconds
after it was written. Until then, a video is a draft on the disk of its gateway, and clients never see a part of it.
"""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Collection
from functools import partial
from pathlib import Path
from secrets import token_hex

from omnibus.errors import Overloaded, storage_error
from omnibus.settings import GatewaySettings
from omnibus_gateway.files.object_storage import ObjectStorage
from omnibus_gateway.http.response import Content
from omnibus_gateway.media.files import remove_older
from omnibus_gateway.openai.videos import Variant
from omnibus_gateway.videos.copies import DRAFT
from omnibus_gateway.videos.job_payload import video_not_found
from omnibus_gateway.videos.storage import DRAFT_TTL_SECONDS, FILE_EXTENSIONS, FILE_GRACE_SECONDS, RETRY_AFTER_SECONDS

PREFIX = "results/videos"


class VideoObjects:
    """Stores videos by id, in a bucket for all gateways."""

    def __init__(self, settings: GatewaySettings, storage: ObjectStorage) -> None:
        self._storage = storage
        self._limit = settings.video_bytes
        self._tenant_limit = int(settings.video_bytes * settings.tenant_share)
        self._seconds = settings.video_kept
        self._drafts = Path(settings.media_dir) / "videos" if settings.media_dir else None
        self._own_drafts: Path | None = None  # without a media directory

    async def check_capacity(self, own: Collection[str] | None = None) -> None:
        """Check that there is room for another video; ``own`` are the ids of its tenant's videos, if it has a share.

        Raises ``Overloaded`` without room, ``StoreUnavailable`` and ``Forbidden``.
        """
        sizes = {each.key.rpartition("/")[2]: each.nbytes for each in await self._storage.list(PREFIX)}
        if sum(sizes.values()) > self._limit:
            raise Overloaded("stored videos use all available space: delete some", retry_after=RETRY_AFTER_SECONDS)
        if own is not None and sum(sizes.get(f"{id}.mp4", 0) for id in own) > self._tenant_limit:
            raise Overloaded(
                "your videos use all the space of one tenant: delete some", retry_after=RETRY_AFTER_SECONDS
            )

    async def new_draft(self, id: str) -> Path:
        """Return the path of a draft file for a new video."""
        try:
            directory = await asyncio.to_thread(self._open_drafts)
        except OSError as error:
            raise storage_error("the directory of drafts", error) from error
        return directory / f"{id}.{token_hex(4)}{DRAFT}"

    async def store_video(self, id: str, draft: Path, thumbnail: bytes, seconds: float) -> None:
        """Store a draft as video ``id``, unless it exists. Raises ``StoreUnavailable`` and ``Forbidden``."""
        await self._remove_expired()
        if await self._storage.find(_key(id, "video")) is not None:
            return
        await self._storage.put(_key(id, "thumbnail"), thumbnail)
        await self._storage.put_file(_key(id, "video"), draft)  # last: it makes the video complete

    async def find_file(self, id: str, variant: Variant) -> Content:
        """Return the content of a finished video. Raises ``NotFound``, ``StoreUnavailable`` and ``Forbidden``."""
        stored_object = await self._storage.find(_key(id, variant))
        if stored_object is None:
            raise video_not_found()
        return Content(stored_object.nbytes, f'"{id}-{variant}"', partial(self._storage.get_range, stored_object.key))

    async def expiry_time(self, id: str) -> float:
        """Return the Unix seconds until which video ``id`` is kept; 0 without one. Raises as ``find_file``."""
        stored_object = await self._storage.find(_key(id, "video"))
        return stored_object.modified + self._seconds if stored_object is not None else 0.0

    async def remove_files(self, id: str) -> None:
        """Remove the objects of ``id`` if there are any."""
        for variant in FILE_EXTENSIONS:
            await self._storage.delete(_key(id, variant))

    async def close(self) -> None:
        if self._own_drafts is not None:
            await asyncio.to_thread(shutil.rmtree, self._own_drafts, ignore_errors=True)
            self._own_drafts = None

    def _open_drafts(self) -> Path:
        """Return the directory of drafts, and remove abandoned ones."""
        if self._drafts is None:
            self._own_drafts = self._own_drafts or Path(tempfile.mkdtemp(prefix="omnibus-videos-"))
            return self._own_drafts
        self._drafts.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self._drafts.glob(f"video_*{DRAFT}"):
            remove_older(path, time.time() - DRAFT_TTL_SECONDS)
        return self._drafts

    async def _remove_expired(self) -> None:
        oldest = time.time() - self._seconds - FILE_GRACE_SECONDS
        for each in await self._storage.list(PREFIX):
            if each.modified < oldest:
                await self._storage.delete(each.key)


def _key(id: str, variant: Variant) -> str:
    return f"{PREFIX}/{id}{FILE_EXTENSIONS[variant]}"
