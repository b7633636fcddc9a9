"""Files that an app puts into the arena for one request: see ``omnibus.task.Media``."""

import asyncio
from typing import Any, Protocol

from omnibus.app import protocol
from omnibus.errors import BadMedia, TooLarge
from omnibus_gateway.media.headers.sniff import sniff_content
from omnibus_gateway.media.inspect import DEFAULT_LIMITS, MediaInfo, accepted_text, inspect_media

_MODALITIES = frozenset({"image", "video", "audio"})
#: Bytes up to which a file is inspected in the event loop; larger ones are hashed in a thread.
_MAX_INLINE_BYTES = 1 << 20


class FilePlacer(Protocol):
    """Interface of a run, such as ``omnibus_gateway.request.request.ClientRequest``, that places files."""

    async def place_input(self, data: bytes, about: tuple[str, str, str]) -> dict[str, Any]: ...


class PlacedMedia:
    """Files of one request of an app; the limits of client requests apply."""

    def __init__(self, run: FilePlacer) -> None:
        self._run = run
        self._count = 0
        self._nbytes = 0

    async def place(self, message: protocol.PlaceMedia) -> dict[str, Any]:
        """Put a file into the arena until the request ends; return its literal for calls.

        Raises ``BadMedia``, ``TooLarge``, and the errors of the arena.
        """
        self._count_file(len(message.data))
        modality = message.modality or sniff_content(message.data).partition("/")[0]
        if modality not in _MODALITIES:
            accepted_formats = " ".join(map(accepted_text, sorted(_MODALITIES)))
            raise BadMedia(f"The file is empty or in an unknown format. {accepted_formats}", param="media")
        info = await _inspect_file(message.data, modality)
        return await self._run.place_input(message.data, (info.modality, info.mime, info.sha256))

    def _count_file(self, nbytes: int) -> None:
        self._count += 1
        self._nbytes += nbytes
        limits = DEFAULT_LIMITS
        if self._count > limits.items or self._nbytes > limits.request_bytes:
            raise TooLarge(
                f"an app may place at most {limits.items} files and {limits.request_bytes} bytes in one request",
                param="media",
            )


async def _inspect_file(data: bytes, modality: str) -> MediaInfo:
    if len(data) <= _MAX_INLINE_BYTES:
        return inspect_media(data, modality, param="media")
    return await asyncio.to_thread(inspect_media, data, modality, param="media")
