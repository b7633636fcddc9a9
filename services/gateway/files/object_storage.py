"""Bytes by keys, in a directory or in a bucket that speaks S3: the one module that knows ``obstore``."""

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

#: Longest wait for one answer of a bucket, for a connection to it, and for all attempts.
_REQUEST_TIMEOUT, _CONNECT_TIMEOUT = "30s", "5s"
_RETRY_TIMEOUT = timedelta(seconds=20)
_MAX_RETRIES = 3
Result = TypeVar("Result")


class StoredObject(NamedTuple):
    """An object's key, its bytes, and when it was written, in Unix seconds."""

    key: str
    nbytes: int
    modified: float


class ObjectStorage:
    """Objects by keys, whose parts are divided by slashes. Who makes a key sees to it that it is a safe path."""

    def __init__(self, store: Any, where: str) -> None:
        self._store = store
        self._where = where

    @classmethod
    def from_settings(cls, settings: GatewaySettings) -> "ObjectStorage | None":
        """The storage of ``settings``; None where there is none. Raises ``BadRequest``."""
        if settings.storage:
            return cls(_open_bucket(settings), settings.storage)
        if not settings.media_dir:
            return None
        directory = Path(settings.media_dir) / "objects"
        return cls(LocalStore(prefix=str(directory.absolute()), mkdir=True), str(directory))

    @classmethod
    def of_results(cls, settings: GatewaySettings) -> "ObjectStorage | None":
        """The storage of what is made for clients; None where that is in a directory. Raises ``BadRequest``."""
        if not settings.storage_results:
            return None
        if not settings.storage:
            raise BadRequest("OMNIBUS_GATEWAY_STORAGE_RESULTS: say where in OMNIBUS_GATEWAY_STORAGE")
        return cls.from_settings(settings)

    async def put(self, key: str, data: bytes) -> None:
        """Write an object as a whole: nobody reads a part of it. Raises ``StoreUnavailable`` and ``Forbidden``."""
        await self._run(obstore.put_async(self._store, key, data))

    async def create(self, key: str, data: bytes) -> bool:
        """Write an object unless there is one; of several writers anywhere one gets True. Raises as ``put``."""
        with self._typed_errors():
            try:
                await obstore.put_async(self._store, key, data, mode="create")
            except AlreadyExistsError:
                return False
        return True

    async def put_stream(self, key: str, parts: AsyncIterator[bytes]) -> None:
        """Write an object of ``parts``, as a whole too. Raises as ``put``, and what ``parts`` raises."""
        writer = obstore.open_writer_async(self._store, key)
        with self._typed_errors():
            async with writer:
                async for part in parts:
                    await writer.write(part)

    async def put_file(self, key: str, path: Path) -> None:
        """Write an object of a file, as a whole too. Raises as ``put``."""
        await self._run(obstore.put_async(self._store, key, path))

    async def find(self, key: str) -> StoredObject | None:
        """An object's size and age; None where there is none. Raises as ``put``."""
        try:
            found = await self._run(obstore.head_async(self._store, key))
        except NotFound:
            return None
        return StoredObject(key, found["size"], found["last_modified"].timestamp())

    async def get_range(self, key: str, begin: int, end: int) -> bytes:
        """Read a part of an object, up to but not including ``end``. Raises as ``get``."""
        if begin >= end:
            return b""
        return bytes(await self._run(obstore.get_range_async(self._store, key, start=begin, end=end)))

    async def get(self, key: str) -> bytes:
        """Read an object. Raises ``NotFound``, ``StoreUnavailable`` and ``Forbidden``."""
        with self._typed_errors():
            found = await obstore.get_async(self._store, key)
            return bytes(await found.bytes_async())

    async def delete(self, key: str) -> None:
        """Remove an object; one that is not there is no error."""
        with suppress(NotFound):
            await self._run(obstore.delete_async(self._store, key))

    async def list(self, prefix: str) -> "list[StoredObject]":
        """All objects whose keys begin with the directory ``prefix``."""
        found: list[StoredObject] = []
        with self._typed_errors():
            async for page in obstore.list(self._store, prefix=prefix):
                found += [StoredObject(each["path"], each["size"], each["last_modified"].timestamp()) for each in page]
        return found

    async def _run(self, operation: Awaitable[Result]) -> Result:
        with self._typed_errors():
            return await operation

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        """Raise what ``obstore`` raises as errors of ours."""
        try:
            yield
        except FileNotFoundError:
            raise NotFound("there is no such object") from None
        except PermissionError as error:
            raise Forbidden(f"the storage {self._where} refuses this gateway: check its credentials") from error
        except (BaseError, OSError) as error:
            raise StoreUnavailable(f"the storage {self._where} does not answer: {type(error).__name__}") from error


def _open_bucket(settings: GatewaySettings) -> S3Store:
    where = urlsplit(settings.storage)
    if where.scheme != "s3" or not where.netloc:
        raise BadRequest(f"OMNIBUS_GATEWAY_STORAGE={settings.storage!r}: it is s3://BUCKET or s3://BUCKET/PREFIX")
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
