"""Files that clients may fetch for a while: what was made for them, where they asked for a URL.

Below the media directory, which several gateways may share: ``files/content`` holds bytes by their content hash, and
``files/tickets`` a small file for each id that a client was given, with the hash and the time it is good for.
"""

import asyncio
import os
import re
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

import msgspec
from msgspec import Struct

from omnibus.bus.media_messages import MediaAnswer
from omnibus.errors import BadRequest, NotFound, ProtocolError, TooLarge, storage_error
from omnibus.settings import GatewaySettings
from services.gateway.media.blob_store import MediaStore
from services.gateway.media.peer_files import KeptFile
from services.gateway.media.peers import MediaPeers
from services.gateway.tenancy.tenant import current_tenant

#: The kind by which gateways name these files to each other.
FILE = "file"
#: What an id looks like: nothing else may become a path. 48 hex digits cannot be guessed.
_ID = re.compile(r"[a-z]{1,16}[-_][0-9a-f]{48}")
#: Seconds between two looks for what has expired.
_SWEEP_SECONDS = 60.0


class FileTicket(Struct, frozen=True):
    """One file. ``created`` and ``expires`` are Unix seconds; ``owner`` stands for the tenant it was made for."""

    id: str
    mime: str
    sha256: str
    nbytes: int
    created: float
    expires: float
    owner: str = ""


class FileStore:
    """Keeps files for ``settings.file_seconds``; without a media directory none.

    With ``peers`` files of other gateways are read, too: from where they are each time, so that one that is removed is
    gone everywhere.
    """

    def __init__(self, settings: GatewaySettings, peers: MediaPeers | None = None) -> None:
        self.peers = peers
        root = Path(settings.media_dir) / "files"
        self._on = bool(settings.media_dir)
        self._tickets = root / "tickets"
        self._content = root / "content"
        self._keep = MediaStore(str(self._content) if self._on else "", settings.file_bytes)
        self._largest = settings.file_largest
        self._seconds = settings.file_seconds
        self._swept = 0.0

    @property
    def is_enabled(self) -> bool:
        """True if files are kept here."""
        return self._on

    def require_enabled(self, param: str) -> None:
        """Raises ``BadRequest`` when no files are kept."""
        if not self._on:
            raise BadRequest(
                "this gateway keeps no files: ask for b64_json, or set OMNIBUS_GATEWAY_MEDIA_DIR", param=param
            )

    async def put(self, data: bytes, mime: str, id: str = "") -> FileTicket:
        """Keep ``data``; whoever knows the ticket's ``id`` may fetch it at any gateway.

        ``id`` is for who had to name it before; else it is new. Raises ``TooLarge``, ``StorageFull``, and ``Fatal``
        when the directory takes no files.
        """
        if len(data) > self._largest:
            raise TooLarge(f"the file has {len(data)} bytes, {self._largest} are kept: ask for b64_json")
        now = time.time()
        found = sha256(data).hexdigest() if len(data) < 1 << 20 else await asyncio.to_thread(_sha256_hex, data)
        owner = _owner_hash(current_tenant().name)
        ticket = FileTicket(id or new_secret_id("file-"), mime, found, len(data), now, now + self._seconds, owner)
        await self._keep.store(found, data, owner)
        try:
            await asyncio.to_thread(self._write_ticket, ticket)
        except OSError as error:
            raise storage_error("the media directory", error) from error
        return ticket

    async def get_ticket(self, id: str) -> FileTicket:
        """The ticket of ``id``.

        Raises ``NotFound`` for an id that was never given, or is not good any more, and as ``MediaPeers.find`` does.
        """
        ticket = await self._local_ticket(id)
        if ticket is None and self.peers is not None and _ID.fullmatch(id):
            answer = await self.peers.find(FILE, id)
            ticket = _peer_ticket(id, answer) if answer is not None else None
        if ticket is None:
            raise _not_found_error()
        return ticket

    async def read(self, id: str) -> tuple[FileTicket, bytes]:
        """A file and its bytes. Raises ``NotFound``, also when newer files have taken its place."""
        ticket = await self._local_ticket(id)
        try:
            if ticket is not None:
                return ticket, await self._keep.get(ticket.sha256, ticket.owner)
            if self.peers is not None and _ID.fullmatch(id):
                return await self._read_peer(self.peers, id)
        except NotFound:
            pass
        raise _not_found_error()

    async def remove(self, id: str) -> None:
        """Revoke ``id``. Raises ``NotFound``."""
        if await self.remove_local(id):
            return
        if self.peers is None or not _ID.fullmatch(id) or not await self.peers.remove(FILE, id):
            raise _not_found_error()

    async def remove_local(self, id: str) -> bool:
        """Revoke ``id`` if it is in this directory; returns whether it was."""
        if await self._local_ticket(id) is None:
            return False
        with suppress(OSError):
            await asyncio.to_thread((self._tickets / id).unlink)
        return True

    async def locate(self, id: str) -> KeptFile | None:
        """A file in this directory, for other gateways."""
        ticket = await self._local_ticket(id)
        path = await self._keep.locate(ticket.sha256, ticket.owner) if ticket is not None else None
        return KeptFile(path, msgspec.to_builtins(ticket)) if path is not None else None

    async def _local_ticket(self, id: str) -> FileTicket | None:
        try:
            if not self._on or not _ID.fullmatch(id):
                return None
            ticket = msgspec.json.decode(await asyncio.to_thread((self._tickets / id).read_bytes), type=FileTicket)
        except (OSError, msgspec.MsgspecError):
            return None
        return ticket if ticket.expires > time.time() else None

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
        if ticket.created >= self._swept + _SWEEP_SECONDS:
            self._swept = ticket.created
            self._remove_expired(ticket.created)

    def _remove_expired(self, now: float) -> None:
        """Remove tickets that have expired, and content that no ticket can be good for any more."""
        for path in self._tickets.iterdir():
            _remove_older(path, now)  # a ticket is as old as its end
        for path in self._content.glob("??/*"):
            _remove_older(path, now - self._seconds - _SWEEP_SECONDS)


def new_secret_id(kind: str) -> str:
    """An id that nobody can guess; ``kind`` is its beginning, as ``file-``."""
    return f"{kind}{token_hex(24)}"


def file_url(base: str, ticket: FileTicket) -> str:
    """Return the URL of a file, at a gateway whose URLs begin with ``base``."""
    return f"{base}/v1/files/{ticket.id}/content"


def _owner_hash(tenant: str) -> str:
    """Return the mark of a tenant's files, a hash: a tenant's name may not be valid in a file name."""
    return sha256(tenant.encode()).hexdigest()[:16] if tenant else ""


def _remove_older(path: Path, than: float) -> None:
    with suppress(FileNotFoundError):  # another gateway was faster
        if path.stat().st_mtime < than:
            path.unlink()


def _sha256_hex(data: bytes) -> str:
    return sha256(data).hexdigest()


def _peer_ticket(id: str, answer: MediaAnswer) -> FileTicket:
    """The ticket in another gateway's answer. Raises ``ProtocolError`` for one of another file."""
    try:
        ticket = msgspec.convert(answer.about, FileTicket)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"gateway {answer.gateway} sent no ticket of a file: {error}") from error
    if ticket.id != id or ticket.nbytes != answer.nbytes:
        raise ProtocolError(f"gateway {answer.gateway} sent the ticket of another file than {id}")
    return ticket


def _not_found_error() -> NotFound:
    return NotFound("file not found: unknown or expired id", param="file_id")
