"""Interface of a store of files made for clients, by secret id."""

from collections.abc import Awaitable, Sequence
from typing import NamedTuple, Protocol

from omnibus.errors import OmnibusError
from omnibus_gateway.media.named_files import FileTicket


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
