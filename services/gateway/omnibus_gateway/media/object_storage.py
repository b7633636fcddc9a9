"""Objects by keys, in a directory or an S3-compatible bucket. Only this module uses ``obstore``.

Files made for clients, in a bucket: images with a URL, and spoken answers.

An object ``results/files/<id>/<owner>.<type>`` contains only the bytes and is written once. It expires
``settings.file_seconds`` after that. When there are too many bytes, the owner with most loses its oldest files.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, S3Store

from omnibus.errors import BadRequest, Forbidden, NotFound, OmnibusError, StoreUnavailable
from omnibus.settings import GatewaySettings
from omnibus_gateway.media.files import (
    FileStore,
    FileTicket,
    MadeFiles,
    UnwrittenFile,
    file_not_found_error,
    file_too_large_error,
    is_file_id,
    new_secret_id,
    owner_hash,
)
from omnibus_gateway.tenancy.tenant import current_tenant

#: Timeouts of a request to a bucket, of a connection to it, and of all attempts.
_REQUEST_TIMEOUT, _CONNECT_TIMEOUT = "30s", "5s"
_RETRY_TIMEOUT = timedelta(seconds=20)
_MAX_RETRIES = 3
Result = TypeVar("Result")


class StoredObject(NamedTuple):
    """An object: its key, its size in bytes, and its time of modification in Unix seconds."""

    key: str
    nbytes: int
    modified: float


class ObjectStorage:
    """Objects by keys with slashes. Callers must pass keys that are safe paths."""

    def __init__(self, store: Any, where: str) -> None:
        self._store = store
        self._where = where

    @classmethod
    def from_settings(cls, settings: GatewaySettings) -> "ObjectStorage | None":
        """Return the storage of ``settings``, or None. Raises ``BadRequest``."""
        if settings.storage:
            return cls(_open_bucket(settings), settings.storage)
        if not settings.media_dir:
            return None
        directory = Path(settings.media_dir) / "objects"
        return cls(LocalStore(prefix=str(directory.absolute()), mkdir=True), str(directory))

    @classmethod
    def of_results(cls, settings: GatewaySettings) -> "ObjectStorage | None":
        """Return the storage of files made for clients; None if they are in a directory. Raises ``BadRequest``."""
        if not settings.storage_results:
            return None
        if not settings.storage:
            raise BadRequest("OMNIBUS_GATEWAY_STORAGE_RESULTS requires a bucket: set OMNIBUS_GATEWAY_STORAGE")
        return cls.from_settings(settings)

    async def put(self, key: str, data: bytes) -> None:
        """Write an object atomically. Raises ``StoreUnavailable`` and ``Forbidden``."""
        await self._run(obstore.put_async(self._store, key, data))

    async def create(self, key: str, data: bytes) -> bool:
        """Create an object. Of several concurrent writers, only one gets True. Raises like ``put``."""
        with self._typed_errors():
            try:
                await obstore.put_async(self._store, key, data, mode="create")
            except AlreadyExistsError:
                return False
        return True

    async def put_stream(self, key: str, parts: AsyncIterator[bytes]) -> None:
        """Write an object from ``parts`` atomically. Raises like ``put``, and the errors of ``parts``."""
        writer = obstore.open_writer_async(self._store, key)
        with self._typed_errors():
            async with writer:
                async for part in parts:
                    await writer.write(part)

    async def put_file(self, key: str, path: Path) -> None:
        """Write an object from a file atomically. Raises like ``put``."""
        await self._run(obstore.put_async(self._store, key, path))

    async def find(self, key: str) -> StoredObject | None:
        """Return an object's size and age, or None. Raises like ``put``."""
        try:
            metadata = await self._run(obstore.head_async(self._store, key))
        except NotFound:
            return None
        return StoredObject(key, metadata["size"], metadata["last_modified"].timestamp())

    async def get_range(self, key: str, begin: int, end: int) -> bytes:
        """Read an object from ``begin`` to before ``end``. Raises like ``get``."""
        if begin >= end:
            return b""
        return bytes(await self._run(obstore.get_range_async(self._store, key, start=begin, end=end)))

    async def get(self, key: str) -> bytes:
        """Read an object. Raises ``NotFound``, ``StoreUnavailable`` and ``Forbidden``."""
        with self._typed_errors():
            response = await obstore.get_async(self._store, key)
            return bytes(await response.bytes_async())

    async def delete(self, key: str) -> None:
        """Remove an object, if it exists."""
        with suppress(NotFound):
            await self._run(obstore.delete_async(self._store, key))

    async def list(self, prefix: str) -> "list[StoredObject]":
        """List all objects in the directory ``prefix``."""
        objects: list[StoredObject] = []
        with self._typed_errors():
            async for page in obstore.list(self._store, prefix=prefix):
                objects += [
                    StoredObject(each["path"], each["size"], each["last_modified"].timestamp()) for each in page
                ]
        return objects

    async def _run(self, operation: Awaitable[Result]) -> Result:
        with self._typed_errors():
            return await operation

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        """Convert the exceptions of ``obstore`` to errors of Omnibus."""
        try:
            yield
        except FileNotFoundError:
            raise NotFound("object not found") from None
        except PermissionError as error:
            raise Forbidden(f"the storage {self._where} denies this gateway access: check its credentials") from error
        except (BaseError, OSError) as error:
            raise StoreUnavailable(f"the storage {self._where} does not answer: {type(error).__name__}") from error


def _open_bucket(settings: GatewaySettings) -> S3Store:
    where = urlsplit(settings.storage)
    if where.scheme != "s3" or not where.netloc:
        raise BadRequest(f"OMNIBUS_GATEWAY_STORAGE={settings.storage!r}: it must be s3://BUCKET or s3://BUCKET/PREFIX")
    options: dict[str, Any] = {"endpoint": settings.storage_endpoint} if settings.storage_endpoint else {}
    return S3Store(
        where.netloc,
        prefix=where.path.strip("/") or None,
        client_options={
            "timeout": _REQUEST_TIMEOUT,
            "connect_timeout": _CONNECT_TIMEOUT,
            "allow_http": settings.storage_endpoint.startswith("http://"),
        },
        retry_config={"max_retries": _MAX_RETRIES, "retry_timeout": _RETRY_TIMEOUT},
        **options,
    )


log = logging.getLogger(__name__)

PREFIX = "results/files"
#: Seconds between two removals of expired and surplus files.
_SWEEP_SECONDS = 60.0


def open_made_files(settings: GatewaySettings) -> MadeFiles:
    """Return the store of files made for clients: a bucket or a directory. Raises ``BadRequest``."""
    objects = ObjectStorage.of_results(settings)
    return FileStore(settings) if objects is None else FileObjects(settings, objects)


class FileObjects:
    """Files in a bucket, shared by all gateways, for ``settings.file_seconds``. A ``FileTicket`` has no digest here."""

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
        """Store ``data`` for the current tenant. Raises ``TooLarge``, ``StoreUnavailable`` and ``Forbidden``."""
        id, now = new_secret_id("file-"), time.time()
        owner = await self._write(UnwrittenFile(id, mime, data, current_tenant().name))
        return FileTicket(id, mime, "", len(data), now, now + self._seconds, owner)

    async def put_named(self, files: Sequence[UnwrittenFile]) -> dict[str, OmnibusError]:
        """Store ``files`` under their own ids. Returns the errors of failed files by id."""
        results = await asyncio.gather(*map(self._write, files), return_exceptions=True)
        errors: dict[str, OmnibusError] = {}
        for file, error in zip(files, results, strict=True):
            if isinstance(error, OmnibusError):
                errors[file.id] = error
            elif isinstance(error, BaseException):
                raise error
        return errors

    async def get_ticket(self, id: str) -> FileTicket:
        """Return the ticket of ``id``. Raises ``NotFound``, ``StoreUnavailable`` and ``Forbidden``."""
        return self._ticket(id, await self._find(id))

    async def read(self, id: str) -> tuple[FileTicket, bytes]:
        """Return a file and its bytes. Raises like ``get_ticket``."""
        stored_file = await self._find(id)
        try:
            data = await self._storage.get(stored_file.key)
        except NotFound:
            raise file_not_found_error() from None
        return self._ticket(id, stored_file), data

    async def remove(self, id: str) -> None:
        """Revoke ``id``. Raises like ``get_ticket``."""
        await self._storage.delete((await self._find(id)).key)

    def close(self) -> None:
        """See ``MadeFiles``."""

    async def _write(self, file: UnwrittenFile) -> str:
        """Write ``file`` and return the hash of its owner."""
        if len(file.data) > self._largest:
            raise file_too_large_error(len(file.data), self._largest)
        owner = owner_hash(file.tenant) or "nobody"
        await self._storage.create(f"{PREFIX}/{file.id}/{owner}.{file.mime.replace('/', '.')}", file.data)
        await self._sweep()
        return owner

    async def _find(self, id: str) -> StoredObject:
        """Return the object of ``id``, for any owner. Raises ``NotFound``."""
        stored_files = await self._storage.list(f"{PREFIX}/{id}") if is_file_id(id) else []
        if not stored_files or stored_files[0].modified + self._seconds <= time.time():
            raise file_not_found_error()
        return stored_files[0]

    def _ticket(self, id: str, stored_file: StoredObject) -> FileTicket:
        owner, mime = _parse_name(stored_file.key)
        return FileTicket(
            id, mime, "", stored_file.nbytes, stored_file.modified, stored_file.modified + self._seconds, owner
        )

    async def _sweep(self) -> None:
        """Remove expired files and surplus ones, at most once per interval.

        Errors are only logged, because the bucket already has the client's file.
        """
        now = time.time()
        if now < self._swept + _SWEEP_SECONDS:
            return
        self._swept = now
        try:
            for each in surplus(await self._storage.list(PREFIX), now - self._seconds, self._limit):
                await self._storage.delete(each.key)
        except OmnibusError as error:
            log.warning("cannot remove expired files yet: %s", error)


def surplus(stored_files: Sequence[StoredObject], oldest: float, limit: int) -> list[StoredObject]:
    """Return the objects of ``stored_files`` to remove: those older than ``oldest``, then surplus ones.

    While there are more than ``limit`` bytes, the oldest object of the largest owner is surplus.
    """
    leaving = [each for each in stored_files if each.modified < oldest]
    queues: dict[str, list[StoredObject]] = defaultdict(list)
    used_bytes: dict[str, int] = defaultdict(int)
    for each in sorted(
        stored_files, key=lambda each: each.modified, reverse=True
    ):  # the next to remove is the last of a list
        if each.modified >= oldest:
            owner, _ = _parse_name(each.key)
            queues[owner].append(each)
            used_bytes[owner] += each.nbytes
    while sum(used_bytes.values()) > limit:
        owner = max(used_bytes, key=used_bytes.__getitem__)
        leaving.append(queues[owner].pop())
        used_bytes[owner] -= leaving[-1].nbytes
    return leaving


def _parse_name(key: str) -> tuple[str, str]:
    """Return the owner and the type of the object of ``key``."""
    owner, _, kind = key.rpartition("/")[2].partition(".")
    return owner, kind.replace(".", "/", 1)
