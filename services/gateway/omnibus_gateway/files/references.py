"""Resolution of file ids in a chat to media."""

from collections.abc import Sequence
from typing import Any

import msgspec

from omnibus.errors import BadRequest, NotFound
from omnibus_gateway.files.client_files import ClientFiles
from omnibus_gateway.media.inspect import accepted_text
from omnibus_gateway.openai.messages import FILE_PART, MediaRef

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
