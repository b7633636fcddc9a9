"""Ordered items of a conversation. Only one connection changes them, so there is no lock."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pybase64

from omnibus.errors import BadRequest, Conflict
from omnibus_gateway.media import urls
from omnibus_gateway.openai.realtime.session import (
    AudioFormat,
    RealtimeFunctionCall,
    RealtimeFunctionOutput,
    RealtimeInputAudio,
    RealtimeInputImage,
    RealtimeItem,
    RealtimeMessage,
    RealtimeOutputAudio,
)
from omnibus_gateway.realtime.config import to_bytes, to_milliseconds
from omnibus_gateway.realtime.event_sender import unknown_item_error

#: Id that stands for the position before the first item.
ROOT = "root"
#: Maximum number of items of one conversation.
MAX_ITEMS = 4096
_OBJECT = "realtime.item"


@dataclass
class ItemPart:
    """Part of a message: ``text`` is its text or the transcript of its ``audio``.

    The model receives the first ``model_bytes`` of the audio, or all of it if 0.
    """

    type: str
    text: str = ""
    audio: bytes | bytearray = b""
    format: AudioFormat | None = None
    image_url: str = ""
    detail: Any = None
    model_bytes: int = 0

    @property
    def model_audio(self) -> bytes:
        """Audio that the model receives."""
        return bytes(self.audio[: self.model_bytes or len(self.audio)])

    @property
    def milliseconds(self) -> int:
        """Duration of its audio."""
        return to_milliseconds(len(self.audio), self.format) if self.format is not None else 0

    def to_event(self, *, with_audio: bool = False) -> dict[str, Any]:
        """Return the part as an event contains it; few events contain raw audio."""
        if self.type == "input_image":
            return {"type": self.type, "image_url": self.image_url, "detail": self.detail or "auto"}
        if self.type not in ("input_audio", "output_audio"):
            return {"type": self.type, "text": self.text}
        part_event: dict[str, Any] = {"type": self.type, "transcript": self.text or None}
        return part_event | {"audio": encode_base64(self.audio)} if with_audio else part_event


@dataclass
class ConversationItem:
    """Message, function call, or the output of one. ``text`` is the arguments or the output of a call."""

    id: str
    type: str
    role: str = ""
    status: str = "completed"
    parts: list[ItemPart] = field(default_factory=list)
    call_id: str = ""
    name: str = ""
    text: str = ""

    @property
    def nbytes(self) -> int:
        """Approximate size in bytes."""
        return len(self.text) + sum(len(each.audio) + len(each.text) + len(each.image_url) for each in self.parts)

    def to_event(self, *, with_audio: bool = False) -> dict[str, Any]:
        """Return the item as an event contains it."""
        head = {"id": self.id, "object": _OBJECT, "type": self.type, "status": self.status}
        if self.type == "message":
            parts = [each.to_event(with_audio=with_audio) for each in self.parts]
            return {**head, "role": self.role, "content": parts}
        if self.type == "function_call":
            return {**head, "call_id": self.call_id, "name": self.name, "arguments": self.text}
        return {**head, "call_id": self.call_id, "output": self.text}

    def truncate_audio(self, index: int, milliseconds: int) -> None:
        """Truncate part ``index`` after this much audio, with its transcript. Raises ``BadRequest``.

        The words have no timestamps. The transcript keeps the same share as the audio, up to the last whole word.
        """
        if self.role != "assistant" or self.type != "message":
            raise BadRequest("Only messages of the assistant can be truncated.", param="item_id")
        if index >= len(self.parts) or self.parts[index].format is None:
            raise BadRequest("The item has no audio at this index.", param="content_index")
        part = self.parts[index]
        if milliseconds > part.milliseconds:
            raise BadRequest(
                f"audio_end_ms is {milliseconds}, but the audio of the item has {part.milliseconds} ms.",
                param="audio_end_ms",
            )
        heard_bytes = to_bytes(milliseconds, part.format) if part.format is not None else 0
        if heard_bytes < len(part.audio):
            part.text = _played_words(part.text, heard_bytes / len(part.audio))
            part.audio = part.audio[:heard_bytes]


def _played_words(transcript: str, share: float) -> str:
    """Return the whole words in the first ``share`` of a transcript."""
    end = int(len(transcript) * share)
    if end < len(transcript) and not transcript[end].isspace():
        end = max(transcript.rfind(" ", 0, end), 0)
    return transcript[:end].rstrip()


class Conversation:
    """Ordered items by id. ``on_change`` is called with the number of bytes that an item adds or frees."""

    def __init__(self, id: str, on_change: Callable[[int], None] = lambda _: None) -> None:
        self.id = id
        self._items: dict[str, ConversationItem] = {}
        self._changed = on_change

    def __iter__(self) -> Iterator[ConversationItem]:
        return iter(list(self._items.values()))

    def __contains__(self, id: object) -> bool:
        return id in self._items

    def count_with(self, on_change: Callable[[int], None]) -> None:
        """Report the bytes of all items to ``on_change``, and then each change.

        Raises ``Overloaded``.
        """
        on_change(sum(each.nbytes for each in self._items.values()))
        self._changed = on_change

    @property
    def last_id(self) -> str | None:
        return next(reversed(self._items), None)

    def find_item(self, id: str, param: str = "item_id") -> ConversationItem:
        """The item ``id``. Raises ``NotFound``."""
        if id not in self._items:
            raise unknown_item_error(id, param)
        return self._items[id]

    def insert_item(self, item: ConversationItem, after: str | None = None) -> str | None:
        """Insert ``item`` after the item ``after``, or at the end if None.

        Returns the id of the item before it. Raises ``NotFound``, ``Conflict`` for a duplicate id, and ``BadRequest``
        if the conversation is full.
        """
        if item.id in self._items:
            raise Conflict(f"The conversation already has an item {item.id!r}.", param="item.id")
        self.check_room()
        if after not in (None, ROOT):
            self.find_item(str(after), "previous_item_id")
        self._changed(item.nbytes)
        before = self.last_id if after is None else after
        if before == self.last_id:
            self._items[item.id] = item
        else:
            self._items = dict(_insert_behind(list(self._items.values()), item, str(before)))
        return None if before == ROOT else before

    def check_room(self) -> None:
        """Raise ``BadRequest`` if the conversation is full."""
        if len(self._items) >= MAX_ITEMS:
            raise BadRequest(
                f"The conversation has {MAX_ITEMS} items, the maximum: delete some before you add more.", param="item"
            )

    def write_down(self, id: str, transcript: str, *, keeps_audio: bool) -> None:
        """Set the transcript of the first part of an item; drop its audio unless ``keeps_audio``.

        Raises ``NotFound`` and ``Overloaded``.
        """
        item = self.find_item(id)
        part = item.parts[0]
        self._changed(len(transcript) - len(part.text) - (0 if keeps_audio else len(part.audio)))
        part.text = transcript
        if not keeps_audio:
            part.audio = b""

    def delete_item(self, id: str) -> None:
        """Remove an item. Raises ``NotFound``, and ``BadRequest`` for an item in progress."""
        item = self._find_complete(id)
        del self._items[id]
        self._changed(-item.nbytes)

    def truncate_item(self, id: str, index: int, milliseconds: int) -> None:
        """Drop the end of an item that was not played. Raises ``NotFound`` and ``BadRequest``."""
        item = self._find_complete(id)
        before = item.nbytes
        item.truncate_audio(index, milliseconds)
        self._changed(item.nbytes - before)

    def _find_complete(self, id: str) -> ConversationItem:
        item = self.find_item(id)
        if item.status == "in_progress":
            raise BadRequest("The item is still being generated: cancel its response first.", param="item_id")
        return item

    def count_growth(self, nbytes: int) -> None:
        """Report that an item has grown by ``nbytes``. Raises ``Overloaded``."""
        self._changed(nbytes)


def _insert_behind(
    items: Sequence[ConversationItem], item: ConversationItem, before: str
) -> Iterator[tuple[str, ConversationItem]]:
    if before == ROOT:
        yield item.id, item
    for each in items:
        yield each.id, each
        if each.id == before:
            yield item.id, item


def build_item(item: RealtimeItem, new_id: Callable[[str], str], format: AudioFormat) -> ConversationItem:
    """Build the item for ``item``, whose audio is in ``format``. Raises ``BadRequest``."""
    if isinstance(item, RealtimeFunctionCall):
        call_id = item.call_id or new_id("call_")
        return ConversationItem(
            item.id or new_id("item_"), "function_call", call_id=call_id, name=item.name, text=item.arguments
        )
    if isinstance(item, RealtimeFunctionOutput):
        output_item = ConversationItem(item.id or new_id("item_"), "function_call_output", call_id=item.call_id)
        output_item.text = item.output
        return output_item
    parts = [_build_part(item, index, format) for index in range(len(item.content))]
    return ConversationItem(item.id or new_id("item_"), "message", item.role, parts=parts)


#: Parts that messages of each role may have.
_PARTS_OF_ROLES = {
    "system": ("input_text",),
    "user": ("input_text", "input_audio", "input_image"),
    "assistant": ("output_text", "output_audio"),
}


def _build_part(message: RealtimeMessage, index: int, format: AudioFormat) -> ItemPart:
    part, param = message.content[index], f"item.content[{index}]"
    type = part.__struct_config__.tag
    allowed_types = _PARTS_OF_ROLES[message.role]
    if type not in allowed_types:
        raise BadRequest(
            f"A {message.role} message accepts only parts of type {', '.join(allowed_types)}.", param=f"{param}.type"
        )
    if isinstance(part, RealtimeInputAudio):
        return ItemPart("input_audio", part.transcript or "", decode_base64(part.audio, f"{param}.audio"), format)
    if isinstance(part, RealtimeInputImage):
        return ItemPart("input_image", image_url=part.image_url, detail=part.detail)
    if isinstance(part, RealtimeOutputAudio):
        if part.audio is not None:
            raise BadRequest("Assistant messages cannot contain audio: send its transcript.", param=f"{param}.audio")
        return ItemPart("output_audio", part.transcript)
    return ItemPart(str(type), part.text)


def decode_base64(text: str, param: str) -> bytes:
    """Decode base64. Raises ``BadRequest`` for invalid text."""
    return urls.decode_base64(text, len(text), param)


def encode_base64(data: bytes | bytearray) -> str:
    """Encode ``data`` as base64."""
    return pybase64.b64encode_as_string(data)
