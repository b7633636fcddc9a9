"""Files whose id was sent before they were made: bytes and ticket in one file, so that one write keeps both.

They are stored among the content of other files, so that they count, are evicted and expire in the same way. The name
is ``<id>`` or ``<id>-<owner>``. The ticket is at the end, followed by its length in four bytes.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from omnibus_gateway.media.blob_store import MediaStore

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
