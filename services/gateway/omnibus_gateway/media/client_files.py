"""Files of tenants, uploaded by clients or made by batches. A tenant sees only its own files.

A file is two objects: ``<owner>/data/<id>``, then ``<owner>/about/<id>``, its description. Without the second object
there is no file. The owner is part of the key, so that no id leads to a file of another tenant.

All gateways reserve room for files in the store until these are stored, so concurrent uploads cannot exceed a limit
together: a later upload sees the earlier reservation or file. While the store is unavailable, each gateway counts its
own uploads. File ids in a chat become media.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from omnibus.errors import BadRequest, Conflict, LimitReached, NotFound, StorageFull, StoreUnavailable, TooLarge
from omnibus.settings import GatewaySettings
from omnibus.store import AccountTotal, Store, TenantAccount
from omnibus_gateway.media.files import is_file_id, new_secret_id
from omnibus_gateway.media.inspect import accepted_text, sniff_content
from omnibus_gateway.media.object_storage import ObjectStorage, StoredObject
from omnibus_gateway.openai.messages import FILE_PART, MediaRef
from omnibus_gateway.tenancy.tenant import current_tenant

log = logging.getLogger(__name__)


class FileRoom:
    """Reservations of the current tenant, in ``store`` if there is one.

    A reservation for ``upload`` is for a part of that upload, and is limited by the upload's announced size.
    """

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._here: dict[str, dict[str, _Reservation]] = defaultdict(dict)  # by account and member

    async def reserve(
        self, member: str, nbytes: int, seconds: float, most: int = 0, upload: str = "", limit: int = 0
    ) -> AccountTotal:
        """Reserve ``nbytes`` for ``member``. Returns the total of all reservations.

        Raises ``Overloaded`` if ``most`` members of its kind are reserved, and ``LimitReached`` above ``limit`` bytes.
        """
        account = TenantAccount(_account_name(upload), limit)
        total = self._reserve_here(account, member, _Reservation(nbytes, time.monotonic() + seconds))
        if self._store is None:
            return total
        try:
            return await self._store.reserve(account, member, nbytes, seconds, most)
        except StoreUnavailable as error:
            log.warning("room for files is only counted at this gateway: %s", error)
            return total
        except BaseException:
            self._release_here(account.name, member)
            raise

    async def release(self, member: str, upload: str = "") -> None:
        """Release the reservation of ``member``, which is stored or has failed."""
        name = _account_name(upload)
        self._release_here(name, member)
        if self._store is not None:
            try:
                await self._store.release(name, member)
            except StoreUnavailable as error:
                log.warning("room for a file stays reserved until the reservation expires: %s", error)

    def _reserve_here(self, account: TenantAccount, member: str, reservation: "_Reservation") -> AccountTotal:
        now = time.monotonic()
        before = self._here[account.name]
        own = {name: each for name, each in before.items() if each.until > now and name != member}
        total = AccountTotal(len(own) + 1, sum(each.nbytes for each in own.values()) + reservation.nbytes)
        if account.bytes and total.bytes > account.bytes:
            raise LimitReached(f"{total.bytes} bytes would be stored, and the limit is {account.bytes}")
        self._here[account.name] = {**own, member: reservation}
        return total

    def _release_here(self, account: str, member: str) -> None:
        self._here[account].pop(member, None)
        if not self._here[account]:
            del self._here[account]


class _Reservation(NamedTuple):
    nbytes: int
    until: float


def _account_name(upload: str) -> str:
    """Return the account of a tenant's files or of one upload. It differs from all names of tenants."""
    return f"{current_tenant().name}/files/{upload}".rstrip("/")


#: Limit of the files of one tenant.
MAX_FILES = 10_000
#: Seconds after which content without a description counts as abandoned.
_UNFINISHED_SECONDS = 600.0
#: Limit of the descriptions that are read concurrently.
_MAX_READS = 32
_encode = msgspec.json.Encoder().encode


class ClientFile(Struct, frozen=True, kw_only=True):
    """A file. Times are in Unix seconds. ``mime`` is detected from its bytes, else the sender's type, else ""."""

    id: str
    filename: str
    purpose: str
    mime: str
    nbytes: int
    created: float
    expires: float

    @property
    def modality(self) -> str:
        """``image``, ``audio`` or ``video``, or another top-level type such as ``text``."""
        return self.mime.partition("/")[0]


class FileContent(NamedTuple):
    """A file with its bytes."""

    about: ClientFile
    data: bytes


class ClientFiles:
    """Files of the current tenant."""

    def __init__(self, settings: GatewaySettings, store: Store | None = None) -> None:
        self.room = FileRoom(store)
        self._storage = ObjectStorage.from_settings(settings)
        self._settings = settings

    @property
    def is_enabled(self) -> bool:
        """True if the gateway stores files."""
        return self._storage is not None

    @property
    def storage(self) -> ObjectStorage:
        """Return the storage of files. Raises ``BadRequest`` if there is none."""
        if self._storage is None:
            raise BadRequest("this gateway stores no files: set OMNIBUS_GATEWAY_MEDIA_DIR or OMNIBUS_GATEWAY_STORAGE")
        return self._storage

    async def add(
        self, data: bytes, filename: str, purpose: str, mime: str = "", seconds: float = 0.0, limited: bool = True
    ) -> ClientFile:
        """Store a file for ``seconds``, by default the configured lifetime.

        A ``limited`` file counts against the tenant's limits; outputs of batches do not. Raises ``TooLarge``,
        ``StorageFull`` if the tenant has no room left, and ``StoreUnavailable``.
        """
        about = self._describe(len(data), filename, purpose, sniff_content(data) or mime, seconds)
        member = f"file:{about.id}"
        try:
            if limited:
                await self.reserve_room(member, len(data), _UNFINISHED_SECONDS)
            await self.storage.put(_key("data", about.id), data)
            await self.reveal(about)
        finally:
            if limited:
                await self.room.release(member)
        return about

    async def add_stream(
        self,
        parts: AsyncIterator[bytes],
        nbytes: int,
        filename: str,
        purpose: str,
        mime: str,
        seconds: float,
        claim: Callable[[ClientFile], Awaitable[None]],
    ) -> ClientFile:
        """Store a file of ``nbytes`` from non-empty ``parts``. Its room is already reserved.

        ``claim`` runs after all bytes are stored, before the file is visible. If ``parts`` raises, or ``claim`` raises
        ``Conflict``, there is no file. Raises like ``add``.
        """
        first = await anext(parts)
        about = self._describe(nbytes, filename, purpose, sniff_content(first) or mime, seconds)
        try:
            await self.storage.put_stream(_key("data", about.id), _behind(first, parts))
        except BaseException:
            await self.storage.delete(_key("data", about.id))
            raise
        try:
            await claim(about)
        except Conflict:
            await self.storage.delete(_key("data", about.id))
            raise
        await self.reveal(about)
        return about

    async def reveal(self, about: ClientFile) -> None:
        """Make a file visible whose bytes are already stored."""
        await self.storage.put(_key("about", about.id), _encode(about))

    def _describe(self, nbytes: int, filename: str, purpose: str, mime: str, seconds: float) -> ClientFile:
        now = time.time()
        return ClientFile(
            id=new_secret_id("file-"),
            filename=filename,
            purpose=purpose,
            mime=mime,
            nbytes=nbytes,
            created=now,
            expires=now + (seconds or self._settings.upload_seconds),
        )

    async def reserve_room(self, member: str, nbytes: int, seconds: float, most: int = 0) -> None:
        """Reserve room for ``nbytes`` until its release, for at most ``seconds``.

        Raises ``TooLarge`` for too large a file, and ``StorageFull`` if the tenant has no room left for it. Raises
        ``Overloaded`` if ``most`` members of its kind are already reserved.
        """
        limits = self._settings
        if nbytes > limits.file_largest:
            raise TooLarge(f"the file has {nbytes} bytes, and the limit is {limits.file_largest}", param="file")
        account_total = await self.room.reserve(member, nbytes, seconds, most)
        try:
            await self._check_room(account_total)
        except BaseException:
            await self.room.release(member)
            raise

    async def _check_room(self, account_total: AccountTotal) -> None:
        """Raises ``StorageFull`` if the reservations and the stored files leave no room."""
        most = self._settings.upload_bytes
        stored_files = await self.storage.list(_prefix("data"))
        for look in ("as it is", "without what has expired"):
            if look != "as it is":
                stored_files = await self._remove_expired(stored_files)
            used_bytes = sum(each.nbytes for each in stored_files)
            if len(stored_files) + account_total.members <= MAX_FILES and used_bytes + account_total.bytes <= most:
                return
        raise StorageFull(
            f"your files have {used_bytes} of {most} bytes, {account_total.bytes} more are reserved, and the limit is "
            f"{MAX_FILES} files: delete some"
        )

    async def get(self, id: str) -> ClientFile:
        """Return the description of a file. Raises ``NotFound``, also for an expired file."""
        if not is_file_id(id):
            raise _not_found_error()
        file = await self._read_about(id)
        if file is None or file.expires <= time.time():
            raise _not_found_error()
        return file

    async def read(self, id: str) -> FileContent:
        """Return a file with its bytes. Raises ``NotFound``."""
        about = await self.get(id)
        try:
            return FileContent(about, await self.storage.get(_key("data", id)))
        except NotFound:
            raise _not_found_error() from None

    async def remove(self, id: str) -> None:
        """Remove a file. Raises ``NotFound``."""
        await self.get(id)
        await self._remove_objects(id)

    async def list_all(self) -> list[ClientFile]:
        """List the tenant's files, oldest first."""
        names = [each.key.rpartition("/")[2] for each in await self.storage.list(_prefix("about"))]
        files: list[ClientFile] = []
        for at in range(0, len(names), _MAX_READS):
            files += filter(None, await asyncio.gather(*map(self._read_about, names[at : at + _MAX_READS])))
        now = time.time()
        return sorted((each for each in files if each.expires > now), key=lambda each: (each.created, each.id))

    async def _read_about(self, id: str) -> ClientFile | None:
        try:
            return msgspec.json.decode(await self.storage.get(_key("about", id)), type=ClientFile)
        except (NotFound, msgspec.MsgspecError):
            return None

    async def _remove_expired(self, stored_files: Sequence[StoredObject]) -> list[StoredObject]:
        """Remove expired and abandoned files. Returns the remaining ones of ``stored_files``."""
        good = {each.id for each in await self.list_all()}
        left: list[StoredObject] = []
        for each in stored_files:
            id = each.key.rpartition("/")[2]
            if id in good:
                left.append(each)
            elif each.modified < time.time() - _UNFINISHED_SECONDS:
                await self._remove_objects(id)
        return left

    async def _remove_objects(self, id: str) -> None:
        await self.storage.delete(_key("about", id))
        await self.storage.delete(_key("data", id))


async def _behind(first: bytes, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for part in parts:
        yield part


def owner_prefix() -> str:
    """Return the first part of all keys of the current tenant."""
    tenant = current_tenant().name
    return sha256(tenant.encode()).hexdigest()[:32] if tenant else "nobody"


def _prefix(part: str) -> str:
    return f"{owner_prefix()}/{part}"


def _key(part: str, id: str) -> str:
    return f"{_prefix(part)}/{id}"


def _not_found_error() -> NotFound:
    return NotFound("file not found: unknown or expired id, or a file of another tenant", param="file_id")


_MEDIA = ("image", "audio", "video")


async def resolve_files(
    messages: Sequence[dict[str, Any]], refs: Sequence[MediaRef], files: ClientFiles
) -> list[MediaRef]:
    """Set the modality of each file in ``refs`` and ``messages``.

    Raises ``NotFound`` for an unknown file, and ``BadRequest`` for a file that is not an image, audio or video.
    """
    resolved_refs = [ref if ref.modality != FILE_PART else await _resolve_file(ref, files) for ref in refs]
    parts = [part for message in messages for part in _media_parts(message)]
    for part, ref in zip(parts, resolved_refs, strict=True):
        part["type"] = ref.modality
    return resolved_refs


async def _resolve_file(ref: MediaRef, files: ClientFiles) -> MediaRef:
    try:
        about = await files.get(ref.file_id)
    except NotFound as error:
        error.param = ref.param
        raise
    if about.modality not in _MEDIA:
        raise BadRequest(
            f"The file is {about.mime or 'of an unknown type'}: send an image, audio or video. "
            + " ".join(map(accepted_text, sorted(_MEDIA))),
            param=ref.param,
        )
    return msgspec.structs.replace(ref, modality=about.modality)


def _media_parts(message: dict[str, Any]) -> list[dict[str, str]]:
    content = message["content"]
    return [part for part in content if part["type"] != "text"] if isinstance(content, list) else []
