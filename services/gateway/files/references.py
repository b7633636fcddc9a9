"""Files that a chat refers to by their ids, as media of it."""

from collections.abc import Sequence
from typing import Any

import msgspec

from omnibus.errors import BadRequest, NotFound
from services.gateway.files.client_files import ClientFiles
from services.gateway.media.inspect import accepted_text
from services.gateway.openai.messages import FILE_PART, MediaRef

_MEDIA = ("image", "audio", "video")


async def resolve_files(
    messages: Sequence[dict[str, Any]], refs: Sequence[MediaRef], files: ClientFiles
) -> list[MediaRef]:
    """``refs`` with the modality of each file, which goes into its part of ``messages`` as well.

    Raises ``NotFound`` for a file that the tenant does not have, and ``BadRequest`` for one that is no media.
    """
    found = [ref if ref.modality != FILE_PART else await _resolve_file(ref, files) for ref in refs]
    parts = [part for message in messages for part in _media_parts(message)]
    for part, ref in zip(parts, found, strict=True):
        part["type"] = ref.modality
    return found


async def _resolve_file(ref: MediaRef, files: ClientFiles) -> MediaRef:
    try:
        about = await files.get(ref.file_id)
    except NotFound as error:
        error.param = ref.param
        raise
    if about.modality not in _MEDIA:
        raise BadRequest(
            f"The file is {about.mime or 'of an unknown type'}: models here read images, audio and video. "
            + " ".join(map(accepted_text, sorted(_MEDIA))),
            param=ref.param,
        )
    return msgspec.structs.replace(ref, modality=about.modality)


def _media_parts(message: dict[str, Any]) -> list[dict[str, str]]:
    content = message["content"]
    return [part for part in content if part["type"] != "text"] if isinstance(content, list) else []
