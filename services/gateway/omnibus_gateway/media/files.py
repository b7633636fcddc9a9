"""Files that clients may fetch for a while: results for clients that requested a URL.

They are below the media directory, which several gateways may share. ``files/content`` stores bytes by their content
hash. ``files/tickets`` has a small file for each id that a client received, with the hash and the expiry time. A file
whose id was known before it was made contains its ticket: ``omnibus_gateway.media.files``.

Files whose id was sent before they were made: bytes and ticket in one file, so that one write keeps both.

They are stored among the content of other files, so that they count, are evicted and expire in the same way. The name
is ``<id>`` or ``<id>-<owner>``. The ticket is at the end, followed by its length in four bytes.

Interface of a store of files made for clients, by secret id.
"""

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Struct

from omnibus.bus.media_messages import MediaAnswer
from omnibus.errors import BadRequest, NotFound, OmnibusError, ProtocolError, TooLarge, storage_error
from omnibus.settings import GatewaySettings
from omnibus_gateway.media.blob_store import MediaStore
from omnibus_gateway.media.peers import KeptFile, MediaPeers
from omnibus_gateway.tenancy.tenant import current_tenant

_LENGTH_BYTES = 4
#: Most bytes of a ticket, including its length: they are read from the end of a file.
_MAX_TRAILER_BYTES = 4096


class FileTicket(Struct, frozen=True):
    """One file. ``created`` and ``expires`` are Unix seconds; ``owner`` is the hash of its tenant."""

    id: str
    mime: str
    sha256: str
    nbytes: int
    created: float
    expires: float
    owner: str = ""


class TicketFile(NamedTuple):
    """A file on disk with a ticket: alone, or after the content."""

    path: Path
    ticket: FileTicket
    has_content: bool


class NamedFiles:
    """Writes and finds these files in a directory, whose bytes ``keep`` counts. For the thread of its writer."""

    def __init__(self, directory: Path, keep: MediaStore) -> None:
        self._directory = str(directory)
        self._keep = keep

    def write(self, ticket: FileTicket, data: bytes) -> None:
        """Write a file. Raises ``OSError``."""
        name = f"{ticket.id}-{ticket.owner}" if ticket.owner else ticket.id
        body = msgspec.json.encode(ticket)
        self._keep.write_new(
            f"{self._folder(ticket.id)}/{name}", (data, body, len(body).to_bytes(_LENGTH_BYTES, "big"))
        )

    def find(self, id: str) -> TicketFile | None:
        """Return the file of ``id``, which must be a valid id."""
        for path in self._candidates(id):
            ticket = _read_ticket(path)
            if ticket is not None and ticket.id == id:
                return TicketFile(Path(path), ticket, has_content=True)
        return None

    def _candidates(self, id: str) -> Iterator[str]:
        folder = self._folder(id)
        yield f"{folder}/{id}"
        with suppress(FileNotFoundError, NotADirectoryError):
            yield from [f"{folder}/{name}" for name in os.listdir(folder) if name.startswith(f"{id}-")]

    def _folder(self, id: str) -> str:
        return f"{self._directory}/{id[-2:]}"


def _read_ticket(path: str) -> FileTicket | None:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MAX_TRAILER_BYTES))
            end = file.read()
        length = int.from_bytes(end[-_LENGTH_BYTES:], "big")
        ticket = msgspec.json.decode(end[-_LENGTH_BYTES - length : -_LENGTH_BYTES], type=FileTicket)
    except (OSError, msgspec.MsgspecError):
        return None
    return ticket if ticket.nbytes + length + _LENGTH_BYTES == size else None


class UnwrittenFile(NamedTuple):
    """A file to keep for a tenant under a known ``id``."""

    id: str
    mime: str
    data: bytes
    tenant: str


class MadeFiles(Protocol):
    """A directory (``media.files.FileStore``) or a bucket (``files.file_objects.FileObjects``)."""

    @property
    def is_enabled(self) -> bool:
        """True if files are kept here."""

    def require_enabled(self, param: str) -> None:
        """Raise ``BadRequest`` if no files are kept."""

    async def put(self, data: bytes, mime: str) -> FileTicket:
        """Keep ``data``; a client with the ticket's ``id`` may fetch it at any gateway. Raises ``OmnibusError``."""

    def put_named(self, files: Sequence[UnwrittenFile]) -> Awaitable[dict[str, OmnibusError]]:
        """Keep ``files`` under their own ids. Returns the errors of files that were not kept, by id."""

    async def get_ticket(self, id: str) -> FileTicket:
        """Return the ticket of ``id``. Raises ``NotFound`` for an unknown or expired id."""

    async def read(self, id: str) -> tuple[FileTicket, bytes]:
        """Return a file's ticket and its bytes. Raises ``NotFound``."""

    async def remove(self, id: str) -> None:
        """Revoke ``id``. Raises ``NotFound``."""

    def close(self) -> None:
        """Stop accepting files."""


#: The kind of these files in messages between gateways.
FILE = "file"
#: The form of an id: nothing else may become a path. 48 hex digits cannot be guessed.
_ID = re.compile(r"[a-z]{1,16}[-_][0-9a-f]{48}")
#: Seconds between two sweeps for expired files.
_SWEEP_SECONDS = 60.0


class FileStore:
    """Keeps files for ``settings.file_seconds``; without a media directory it keeps none.

    With ``peers``, files of other gateways are read as well, each time from their gateway. A removed file is therefore
    gone everywhere.
    """

    def __init__(self, settings: GatewaySettings, peers: MediaPeers | None = None) -> None:
        self.peers = peers
        root = Path(settings.media_dir) / "files"
        self._on = bool(settings.media_dir)
        self._tickets = root / "tickets"
        self._content = root / "content"
        self._keep = MediaStore(str(self._content) if self._on else "", settings.file_bytes)
        self._named = NamedFiles(self._content, self._keep)
        self._largest = settings.file_largest
        self._seconds = settings.file_seconds
        self._swept = 0.0

    @property
    def is_enabled(self) -> bool:
        """True if files are kept here."""
        return self._on

    def require_enabled(self, param: str) -> None:
        """Raise ``BadRequest`` if no files are kept."""
        if not self._on:
            raise BadRequest(
                "this gateway keeps no files: request b64_json, or set OMNIBUS_GATEWAY_MEDIA_DIR", param=param
            )

    async def put(self, data: bytes, mime: str) -> FileTicket:
        """Keep ``data``; a client with the ticket's ``id`` may fetch it at any gateway.

        Raises ``TooLarge``, ``StorageFull``, and ``Fatal`` if the directory cannot be written.
        """
        if len(data) > self._largest:
            raise file_too_large_error(len(data), self._largest)
        now = time.time()
        digest = sha256(data).hexdigest() if len(data) < 1 << 20 else await asyncio.to_thread(_sha256_hex, data)
        owner = owner_hash(current_tenant().name)
        ticket = FileTicket(new_secret_id("file-"), mime, digest, len(data), now, now + self._seconds, owner)
        await self._keep.store(digest, data, owner)
        try:
            await asyncio.to_thread(self._write_ticket, ticket)
        except OSError as error:
            raise storage_error("the media directory", error) from error
        return ticket

    def put_named(self, files: Sequence[UnwrittenFile]) -> Awaitable[dict[str, OmnibusError]]:
        """Keep ``files`` under their own ids, in one turn of the writer.

        Returns the errors of files that were not kept, by id.
        """
        return self._keep.run_in_writer(partial(self._write_named, files))

    async def get_ticket(self, id: str) -> FileTicket:
        """Return the ticket of ``id``.

        Raises ``NotFound`` for an unknown or expired id, and as ``MediaPeers.find`` does.
        """
        ticket_file = await self._find_local(id)
        if ticket_file is not None:
            return ticket_file.ticket
        answer = await self.peers.find(FILE, id) if self.peers is not None and _ID.fullmatch(id) else None
        if answer is None:
            raise file_not_found_error()
        return _peer_ticket(id, answer)

    async def read(self, id: str) -> tuple[FileTicket, bytes]:
        """Return a file's ticket and its bytes. Raises ``NotFound``, also if newer files have evicted it."""
        ticket_file = await self._find_local(id)
        try:
            if ticket_file is not None:
                return ticket_file.ticket, await self._read_local(ticket_file)
            if self.peers is not None and _ID.fullmatch(id):
                return await self._read_peer(self.peers, id)
        except (NotFound, FileNotFoundError):
            pass
        raise file_not_found_error()

    async def remove(self, id: str) -> None:
        """Revoke ``id``. Raises ``NotFound``."""
        if await self.remove_local(id):
            return
        if self.peers is None or not _ID.fullmatch(id) or not await self.peers.remove(FILE, id):
            raise file_not_found_error()

    async def remove_local(self, id: str) -> bool:
        """Revoke ``id`` if it is in this directory; returns True if it was."""
        ticket_file = await self._find_local(id)
        if ticket_file is None:
            return False
        with suppress(OSError):
            await asyncio.to_thread(ticket_file.path.unlink)
        return True

    async def locate(self, id: str) -> KeptFile | None:
        """Return a file in this directory, for other gateways."""
        ticket_file = await self._find_local(id)
        if ticket_file is None:
            return None
        ticket = ticket_file.ticket
        path = ticket_file.path if ticket_file.has_content else await self._keep.locate(ticket.sha256, ticket.owner)
        return KeptFile(path, msgspec.to_builtins(ticket), ticket.nbytes) if path is not None else None

    async def _find_local(self, id: str) -> TicketFile | None:
        """Return this directory's file with the valid ticket of ``id``, if any."""
        if not self._on or not _ID.fullmatch(id):
            return None
        ticket_file = await asyncio.to_thread(self._find_ticket, id)
        return ticket_file if ticket_file is not None and ticket_file.ticket.expires > time.time() else None

    def _find_ticket(self, id: str) -> TicketFile | None:
        path = self._tickets / id
        with suppress(OSError, msgspec.MsgspecError):
            return TicketFile(path, msgspec.json.decode(path.read_bytes(), type=FileTicket), has_content=False)
        return self._named.find(id)

    async def _read_local(self, ticket_file: TicketFile) -> bytes:
        ticket = ticket_file.ticket
        if ticket_file.has_content:
            return await asyncio.to_thread(_read_beginning, ticket_file.path, ticket.nbytes)
        return await self._keep.get(ticket.sha256, ticket.owner)

    async def _read_peer(self, peers: MediaPeers, id: str) -> tuple[FileTicket, bytes]:
        answer, data = await peers.read(FILE, id, self._largest)
        ticket = _peer_ticket(id, answer)
        if await asyncio.to_thread(_sha256_hex, data) != ticket.sha256:
            raise ProtocolError(f"another gateway sent other bytes than those of {id}: its disk may be damaged")
        return ticket, data

    def close(self) -> None:
        self._keep.close()

    def _write_ticket(self, ticket: FileTicket) -> None:
        self._tickets.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._tickets / ticket.id
        draft = path.with_suffix(f".{os.getpid()}")
        with open(os.open(draft, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(ticket))
        os.utime(draft, (ticket.expires, ticket.expires))
        draft.rename(path)
        self._sweep_directory(ticket.created)

    def _write_named(self, files: Sequence[UnwrittenFile]) -> dict[str, OmnibusError]:
        errors: dict[str, OmnibusError] = {}
        now = time.time()
        for id, mime, data, tenant in files:
            owner, digest = owner_hash(tenant), sha256(data).hexdigest()
            try:
                if len(data) > self._largest:
                    raise file_too_large_error(len(data), self._largest)
                self._named.write(FileTicket(id, mime, digest, len(data), now, now + self._seconds, owner), data)
            except TooLarge as error:
                errors[id] = error
            except OSError as error:
                errors[id] = storage_error("the media directory", error)
        self._sweep_directory(now)
        return errors

    def _sweep_directory(self, now: float) -> None:
        if now >= self._swept + _SWEEP_SECONDS:
            self._swept = now
            self._remove_expired(now)

    def _remove_expired(self, now: float) -> None:
        """Remove expired tickets, and content without a valid ticket."""
        for path in self._tickets.glob("*"):
            remove_older(path, now)  # the time of a ticket's file is its expiry
        for path in self._content.glob("??/*"):
            remove_older(path, now - self._seconds - _SWEEP_SECONDS)


def is_file_id(id: str) -> bool:
    """Return True if ``id`` has the form of a file id: nothing else may become a path."""
    return _ID.fullmatch(id) is not None


def new_secret_id(kind: str) -> str:
    """Return an id that cannot be guessed; ``kind`` is its prefix, such as ``file-``."""
    return f"{kind}{token_hex(24)}"


def file_url(base: str, ticket: FileTicket) -> str:
    """Return the URL of a file, at a gateway's ``base`` URL."""
    return f"{base}/v1/files/{ticket.id}/content"


def owner_hash(tenant: str) -> str:
    """Return a hash that marks a tenant's files: a tenant's name may not be valid in a file name."""
    return sha256(tenant.encode()).hexdigest()[:16] if tenant else ""


def remove_older(path: Path, than: float) -> None:
    """Remove a file that was last changed before ``than``, in Unix seconds."""
    with suppress(FileNotFoundError):  # another gateway was faster
        if path.stat().st_mtime < than:
            path.unlink()


def _read_beginning(path: Path, nbytes: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(nbytes)


def file_too_large_error(nbytes: int, limit: int) -> TooLarge:
    """Return the error for a file of ``nbytes`` over ``limit``."""
    return TooLarge(f"the file has {nbytes} bytes, and at most {limit} are kept: request b64_json")


def _sha256_hex(data: bytes) -> str:
    return sha256(data).hexdigest()


def _peer_ticket(id: str, answer: MediaAnswer) -> FileTicket:
    """Return the ticket in another gateway's answer. Raises ``ProtocolError`` if it is of another file."""
    try:
        ticket = msgspec.convert(answer.about, FileTicket)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"gateway {answer.gateway} sent no ticket of a file: {error}") from error
    if ticket.id != id or ticket.nbytes != answer.nbytes:
        raise ProtocolError(f"gateway {answer.gateway} sent the ticket of another file than {id}")
    return ticket


def file_not_found_error() -> NotFound:
    """Return the error for an id without a file."""
    return NotFound("file not found: unknown or expired id", param="file_id")
