"""Files that were made for clients, in a bucket: images of which they were given a URL, and spoken answers.

An object is ``results/files/<id>/<owner>.<type>``: the bytes and nothing else, written once. It is good for
``settings.file_seconds`` from when it was written, and its owner counts when there are too many.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Sequence

from omnibus.errors import NotFound, OmnibusError
from omnibus.settings import GatewaySettings
from services.gateway.files.object_storage import ObjectStorage, StoredObject
from services.gateway.media.files import (
    FileStore,
    file_not_found_error,
    file_too_large_error,
    is_file_id,
    new_secret_id,
    owner_hash,
)
from services.gateway.media.made_files import MadeFiles, UnwrittenFile
from services.gateway.media.named_files import FileTicket
from services.gateway.tenancy.tenant import current_tenant

log = logging.getLogger(__name__)

PREFIX = "results/files"
#: Seconds between two looks for what has expired, and for more than there may be.
_SWEEP_SECONDS = 60.0


def open_made_files(settings: GatewaySettings) -> MadeFiles:
    """The place of files that are made for clients: a bucket, or a directory. Raises ``BadRequest``."""
    objects = ObjectStorage.of_results(settings)
    return FileStore(settings) if objects is None else FileObjects(settings, objects)


class FileObjects:
    """Keeps files for ``settings.file_seconds``, the same for all gateways. A ``FileTicket`` has no digest here."""

    def __init__(self, settings: GatewaySettings, storage: ObjectStorage) -> None:
        self._storage = storage
        self._largest = settings.file_largest
        self._limit = settings.file_bytes
        self._seconds = settings.file_seconds
        self._swept = 0.0

    @property
    def is_enabled(self) -> bool:
        """See ``MadeFiles``."""
        return True

    def require_enabled(self, param: str) -> None:
        """See ``MadeFiles``."""

    async def put(self, data: bytes, mime: str) -> FileTicket:
        """Keep ``data`` for the tenant that is served. Raises ``TooLarge``, ``StoreUnavailable`` and ``Forbidden``."""
        id, now = new_secret_id("file-"), time.time()
        owner = await self._write(UnwrittenFile(id, mime, data, current_tenant().name))
        return FileTicket(id, mime, "", len(data), now, now + self._seconds, owner)

    async def put_named(self, files: Sequence[UnwrittenFile]) -> dict[str, OmnibusError]:
        """Keep ``files`` under their own ids. Returns by id why one was not kept."""
        ended = await asyncio.gather(*map(self._write, files), return_exceptions=True)
        failed: dict[str, OmnibusError] = {}
        for file, error in zip(files, ended, strict=True):
            if isinstance(error, OmnibusError):
                failed[file.id] = error
            elif isinstance(error, BaseException):
                raise error
        return failed

    async def get_ticket(self, id: str) -> FileTicket:
        """The ticket of ``id``. Raises ``NotFound``, ``StoreUnavailable`` and ``Forbidden``."""
        return self._ticket(id, await self._find(id))

    async def read(self, id: str) -> tuple[FileTicket, bytes]:
        """A file and its bytes. Raises as ``get_ticket``."""
        found = await self._find(id)
        try:
            data = await self._storage.get(found.key)
        except NotFound:
            raise file_not_found_error() from None
        return self._ticket(id, found), data

    async def remove(self, id: str) -> None:
        """Revoke ``id``. Raises as ``get_ticket``."""
        await self._storage.delete((await self._find(id)).key)

    def close(self) -> None:
        """See ``MadeFiles``."""

    async def _write(self, file: UnwrittenFile) -> str:
        """Write ``file``; returns the mark of its owner."""
        if len(file.data) > self._largest:
            raise file_too_large_error(len(file.data), self._largest)
        owner = owner_hash(file.tenant) or "nobody"
        await self._storage.create(f"{PREFIX}/{file.id}/{owner}.{file.mime.replace('/', '.')}", file.data)
        await self._sweep()
        return owner

    async def _find(self, id: str) -> StoredObject:
        """The object of ``id``, whoever it was made for. Raises ``NotFound``."""
        found = await self._storage.list(f"{PREFIX}/{id}") if is_file_id(id) else []
        if not found or found[0].modified + self._seconds <= time.time():
            raise file_not_found_error()
        return found[0]

    def _ticket(self, id: str, found: StoredObject) -> FileTicket:
        owner, mime = _parse_name(found.key)
        return FileTicket(id, mime, "", found.nbytes, found.modified, found.modified + self._seconds, owner)

    async def _sweep(self) -> None:
        """Now and then remove what has expired, and the oldest of who has most where there is too much.

        It is not what a client waits for: a bucket that fails here has taken the file.
        """
        now = time.time()
        if now < self._swept + _SWEEP_SECONDS:
            return
        self._swept = now
        try:
            for each in surplus(await self._storage.list(PREFIX), now - self._seconds, self._limit):
                await self._storage.delete(each.key)
        except OmnibusError as error:
            log.warning("files that have expired stay for now: %s", error)


def surplus(kept: Sequence[StoredObject], oldest: float, limit: int) -> list[StoredObject]:
    """The objects of ``kept`` that have to leave: those from before ``oldest``, and then, until there are no more than
    ``limit`` bytes, the first of the owner that has most."""
    leaving = [each for each in kept if each.modified < oldest]
    queues: dict[str, list[StoredObject]] = defaultdict(list)
    used: dict[str, int] = defaultdict(int)
    for each in sorted(kept, key=lambda each: each.modified, reverse=True):  # the first to leave is the last of a list
        if each.modified >= oldest:
            owner, _ = _parse_name(each.key)
            queues[owner].append(each)
            used[owner] += each.nbytes
    while sum(used.values()) > limit:
        owner = max(used, key=used.__getitem__)
        leaving.append(queues[owner].pop())
        used[owner] -= leaving[-1].nbytes
    return leaving


def _parse_name(key: str) -> tuple[str, str]:
    """The owner and the type of the object of ``key``."""
    owner, _, kind = key.rpartition("/")[2].partition(".")
    return owner, kind.replace(".", "/", 1)
