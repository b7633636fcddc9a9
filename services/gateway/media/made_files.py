"""Interface of the place of files that were made for clients, who fetch them by ids that nobody can guess."""

from collections.abc import Awaitable, Sequence
from typing import NamedTuple, Protocol

from omnibus.errors import OmnibusError
from services.gateway.media.named_files import FileTicket


class UnwrittenFile(NamedTuple):
    """A file that is to be kept under an ``id`` which is known already, for the tenant of that name."""

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
        """Raises ``BadRequest`` when no files are kept."""

    async def put(self, data: bytes, mime: str) -> FileTicket:
        """Keep ``data``; whoever knows the ticket's ``id`` may fetch it at any gateway. Raises ``OmnibusError``."""

    def put_named(self, files: Sequence[UnwrittenFile]) -> Awaitable[dict[str, OmnibusError]]:
        """Keep ``files`` under their own ids. Returns by id why one was not kept."""

    async def get_ticket(self, id: str) -> FileTicket:
        """The ticket of ``id``. Raises ``NotFound`` for one that was never given, or is not good any more."""

    async def read(self, id: str) -> tuple[FileTicket, bytes]:
        """A file and its bytes. Raises ``NotFound``."""

    async def remove(self, id: str) -> None:
        """Revoke ``id``. Raises ``NotFound``."""

    def close(self) -> None:
        """Take no more files."""
