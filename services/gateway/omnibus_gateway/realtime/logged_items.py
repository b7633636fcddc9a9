"""Conversion of conversation items to and from the log of their session."""

import msgspec

from omnibus.errors import ProtocolError
from omnibus.recording.sessions import LoggedItem, LoggedPart
from omnibus_gateway.openai.realtime.session import AudioFormat
from omnibus_gateway.realtime.conversation import ConversationItem, ItemPart

_encode = msgspec.json.Encoder().encode
_decode_format = msgspec.json.Decoder(AudioFormat).decode


def to_logged(item: ConversationItem) -> LoggedItem:
    """Convert ``item`` with its audio."""
    parts = tuple(
        LoggedPart(
            each.type,
            each.text,
            bytes(each.audio),
            msgspec.Raw(_encode(each.format)) if each.format is not None else msgspec.Raw(b"null"),
            each.image_url,
            each.detail,
            each.model_bytes,
        )
        for each in item.parts
    )
    return LoggedItem(item.id, item.type, item.role, parts, item.call_id, item.name, item.text)


def from_logged(item: LoggedItem) -> ConversationItem:
    """Convert a logged item. Raises ``ProtocolError``."""
    conversation_item = ConversationItem(
        item.id, item.type, item.role, call_id=item.call_id, name=item.name, text=item.text
    )
    for part in item.parts:
        format = _read_format(part.format)
        conversation_item.parts.append(
            ItemPart(part.type, part.text, part.audio, format, part.image_url, part.detail, part.model_bytes)
        )
    return conversation_item


def _read_format(format: msgspec.Raw) -> AudioFormat | None:
    try:
        return None if bytes(format) in (b"", b"null") else _decode_format(format)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"the log of a session has audio of an unknown format: {error}") from error
