"""Objects by keys, in a directory or an S3-compatible bucket. Only this module uses ``obstore``."""

from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, S3Store

from omnibus.errors import BadRequest, Forbidden, NotFound, StoreUnavailable
from omnibus.settings import GatewaySettings

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
