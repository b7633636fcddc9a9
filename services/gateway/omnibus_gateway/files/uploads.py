"""Uploads of files in parts, within an hour, at any gateway. Each tenant has its own.

An upload is an object ``<owner>/uploads/<id>``, its description, and an object ``<owner>/parts/<id>/<part>`` for each
received part. It ends only once, even if several gateways try to end it. The first of them creates the object
``<owner>/ends/<id>``.
"""

import hashlib
import re
import time
from collections.abc import AsyncIterator, Sequence

import msgspec
from msgspec import Struct

from omnibus.errors import BadRequest, Conflict, LimitReached, NotFound, Overloaded, StorageFull, TooLarge
from omnibus_gateway.media.client_files import ClientFile, ClientFiles, owner_prefix
from omnibus_gateway.media.files import new_secret_id
from omnibus_gateway.media.object_storage import ObjectStorage, StoredObject

#: Seconds within which a client must complete an upload.
UPLOAD_SECONDS = 3600.0
#: Limits: pending uploads of one tenant, and parts of one upload.
MAX_UPLOADS, MAX_PARTS = 100, 1000
_ID = re.compile(r"upload_[0-9a-f]{48}")
_encode = msgspec.json.Encoder().encode


class FileUpload(Struct, frozen=True, kw_only=True):
    """An upload. Times are in Unix seconds. ``seconds`` is the lifetime of its file; 0 is the configured default."""

    id: str
    filename: str
    purpose: str
    mime: str
    nbytes: int
    seconds: float
    created: float
    expires: float
    status: str = "pending"
    file: ClientFile | None = None

    @property
    def current_status(self) -> str:
        """``pending``, ``completed``, ``cancelled``, or ``expired`` if it was not completed in time."""
        return "expired" if self.status == "pending" and self.expires <= time.time() else self.status


class FileUploads:
    """Uploads of the current tenant. A complete upload becomes one of ``files``."""

    def __init__(self, files: ClientFiles) -> None:
        self._files = files

    @property
    def _storage(self) -> ObjectStorage:
        return self._files.storage

    async def begin(self, filename: str, purpose: str, mime: str, nbytes: int, seconds: float = 0.0) -> FileUpload:
        """Start an upload and reserve room for a file of ``nbytes``.

        Raises ``TooLarge``, ``StorageFull`` and ``StoreUnavailable``.
        """
        if len(await self._list_pending()) >= MAX_UPLOADS:
            raise _too_many_error()
        now = time.time()
        upload = FileUpload(
            id=new_secret_id("upload_"),
            filename=filename,
            purpose=purpose,
            mime=mime,
            nbytes=nbytes,
            seconds=seconds,
            created=now,
            expires=now + UPLOAD_SECONDS,
        )
        await self._reserve_room(upload)
        await self._write(upload)
        return upload

    async def _reserve_room(self, upload: FileUpload) -> None:
        seconds = max(1.0, upload.expires - time.time())
        try:
            await self._files.reserve_room(_room_member(upload.id), upload.nbytes, seconds, MAX_UPLOADS)
        except Overloaded as error:
            raise _too_many_error() from error

    async def add_part(self, id: str, data: bytes) -> str:
        """Store a part of an upload and return the part's id.

        Raises ``NotFound``, ``Conflict`` for an upload that has ended, and ``TooLarge`` above the announced size.
        """
        upload = await self._get_pending(id)
        if not data:
            raise BadRequest("A part is empty: send its bytes.", param="data")
        parts = await self._storage.list(_parts_prefix(id))
        size = sum(part.nbytes for part in parts)
        if size + len(data) > upload.nbytes:
            raise TooLarge(
                f"the upload was announced with {upload.nbytes} bytes, and has {size + len(data)} with this part",
                param="data",
            )
        if len(parts) >= MAX_PARTS:
            raise TooLarge(f"an upload has at most {MAX_PARTS} parts: send larger ones", param="data")
        part = new_secret_id("part_")
        await self._reserve_part(upload, part, len(data))
        try:
            await self._storage.put(f"{_parts_prefix(id)}/{part}", data)
        except BaseException:
            await self._files.room.release(_part_member(part), id)
            raise
        return part

    async def _reserve_part(self, upload: FileUpload, part: str, nbytes: int) -> None:
        """Reserve the bytes of a part. Concurrent parts are not listed yet. Raises ``TooLarge``."""
        seconds = max(1.0, upload.expires - time.time())
        room = self._files.room
        try:
            await room.reserve(_part_member(part), nbytes, seconds, MAX_PARTS, upload.id, upload.nbytes)
        except (LimitReached, Overloaded) as error:
            raise TooLarge(
                f"the upload was announced with {upload.nbytes} bytes and has at most {MAX_PARTS} parts: this part "
                "exceeds a limit",
                param="data",
            ) from error

    async def complete(self, id: str, part_ids: Sequence[str], md5: str = "") -> FileUpload:
        """Join the parts ``part_ids`` to a file, in this order.

        Raises ``NotFound``, ``Conflict`` for an upload that has ended or ends concurrently, ``StorageFull`` and
        ``StoreUnavailable``. Raises ``BadRequest`` for unknown or missing parts, and for another ``md5`` than
        announced.
        """
        _check_id(id)
        # List the parts first: another gateway removes them only after the end of the upload.
        parts = {part.key.rpartition("/")[2]: part for part in await self._storage.list(_parts_prefix(id))}
        upload = await self._get_pending(id)
        _check_parts(upload, part_ids, parts)
        digest = hashlib.md5(usedforsecurity=False)

        async def claim(file: ClientFile) -> None:
            await self._claim_end(msgspec.structs.replace(upload, status="completed", file=file))

        file = await self._files.add_stream(
            self._read_parts(id, part_ids, digest, md5.lower()),
            upload.nbytes,
            upload.filename,
            upload.purpose,
            upload.mime,
            upload.seconds,
            claim,
        )
        completed_upload = msgspec.structs.replace(upload, status="completed", file=file)
        await self._write(completed_upload)
        await self._files.room.release(_room_member(id))
        await self._remove_parts(id)
        return completed_upload

    async def cancel(self, id: str) -> FileUpload:
        """Cancel an upload and remove its parts. Raises ``NotFound``, and ``Conflict`` if it has ended."""
        cancelled_upload = msgspec.structs.replace(await self._get_pending(id), status="cancelled")
        await self._claim_end(cancelled_upload)
        await self._write(cancelled_upload)
        await self._remove_parts(id)
        await self._files.room.release(_room_member(id))
        return cancelled_upload

    async def _claim_end(self, ended_upload: FileUpload) -> None:
        """Make ``ended_upload`` the end of an upload. Raises ``Conflict`` if it already has another end."""
        if await self._storage.create(_end_key(ended_upload.id), _encode(ended_upload)):
            return
        first = msgspec.json.decode(await self._storage.get(_end_key(ended_upload.id)), type=FileUpload)
        if first != ended_upload:  # equal: this one was created, and the storage's answer was lost
            await self._finish_end(first)
            raise _over_error(first)

    async def _finish_end(self, ended_upload: FileUpload) -> None:
        """Finish the end of an upload, if its gateway failed before that."""
        stored_upload = await self._read(ended_upload.id)
        if stored_upload is not None and stored_upload.status == "pending":
            if ended_upload.file is not None:
                await self._files.reveal(ended_upload.file)
            await self._write(ended_upload)

    async def _read_parts(
        self, id: str, part_ids: Sequence[str], digest: "hashlib._Hash", md5: str
    ) -> AsyncIterator[bytes]:
        """Yield the parts. Raises ``BadRequest`` after the last one if the ``md5`` differs."""
        for part in part_ids:
            try:
                data = await self._storage.get(f"{_parts_prefix(id)}/{part}")
            except NotFound:
                raise Conflict("the upload has ended concurrently: begin another one") from None
            digest.update(data)
            yield data
        if md5 and digest.hexdigest() != md5:
            raise BadRequest(f"the md5 of the parts is {digest.hexdigest()}, not {md5}: send them again", param="md5")

    async def _get_pending(self, id: str) -> FileUpload:
        upload = await self._read(_check_id(id))
        if upload is None:
            raise _not_found_error()
        if upload.current_status != "pending":
            raise _over_error(upload)
        return upload

    async def _list_pending(self) -> list[FileUpload]:
        """List pending uploads, and remove those that ended long ago."""
        uploads: list[FileUpload] = []
        for each in await self._storage.list(f"{owner_prefix()}/uploads"):
            id = each.key.rpartition("/")[2]
            upload = await self._read(id)
            if upload is not None and upload.current_status == "pending":
                uploads.append(upload)
            elif each.modified < time.time() - UPLOAD_SECONDS:
                await self._remove_parts(id)
                await self._storage.delete(_key(id))
                await self._storage.delete(_end_key(id))
        return uploads

    async def _read(self, id: str) -> FileUpload | None:
        try:
            return msgspec.json.decode(await self._storage.get(_key(id)), type=FileUpload)
        except (NotFound, msgspec.MsgspecError):
            return None

    async def _write(self, upload: FileUpload) -> None:
        await self._storage.put(_key(upload.id), _encode(upload))

    async def _remove_parts(self, id: str) -> None:
        for part in await self._storage.list(_parts_prefix(id)):
            await self._storage.delete(part.key)


def _check_id(id: str) -> str:
    """Return ``id`` if it has the format of an upload's. Raises ``NotFound``."""
    if not _ID.fullmatch(id):
        raise _not_found_error()
    return id


def _not_found_error() -> NotFound:
    return NotFound("upload not found: unknown id, or an upload of another tenant", param="upload_id")


def _over_error(upload: FileUpload) -> Conflict:
    file = f", its file is {upload.file.id}" if upload.file is not None else ""
    return Conflict(f"the upload is {upload.current_status}{file}: begin another one")


def _check_parts(upload: FileUpload, part_ids: Sequence[str], parts: dict[str, StoredObject]) -> None:
    if len(set(part_ids)) < len(part_ids):
        raise BadRequest("A part appears twice: send each id once.", param="part_ids")
    for place, part in enumerate(part_ids):
        if part not in parts:
            raise BadRequest("The upload has no part with this id.", param=f"part_ids[{place}]")
    nbytes = sum(parts[part].nbytes for part in part_ids)
    if nbytes != upload.nbytes:
        raise BadRequest(
            f"the parts have {nbytes} bytes, but the upload was announced with {upload.nbytes}", param="part_ids"
        )


def _room_member(id: str) -> str:
    return f"upload:{id}"


def _part_member(part: str) -> str:
    return f"part:{part}"


def _too_many_error() -> StorageFull:
    return StorageFull(f"{MAX_UPLOADS} uploads are pending, which is the limit: complete or cancel some")


def _key(id: str) -> str:
    return f"{owner_prefix()}/uploads/{id}"


def _end_key(id: str) -> str:
    return f"{owner_prefix()}/ends/{id}"


def _parts_prefix(id: str) -> str:
    return f"{owner_prefix()}/parts/{id}"
