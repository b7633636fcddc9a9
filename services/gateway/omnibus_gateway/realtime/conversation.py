"""Ordered items of a conversation, and the events of a response that adds items to it.

The first event of a response is ``response.created``, the last one ``response.done``. Between them, each item has, in
this order:

- ``response.output_item.added``, ``conversation.item.added``, ``response.content_part.added``
- its deltas and their ``done`` events
- ``response.content_part.done``, ``conversation.item.done``, ``response.output_item.done``

A spoken message is done when all of its audio has arrived, which may be after later calls have begun. A response that
is cut short also has all closing events.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pybase64

from omnibus.errors import BadRequest, Conflict, OmnibusError, ProtocolError
from omnibus_gateway.openai import messages as media_messages
from omnibus_gateway.openai.chat_response import Usage
from omnibus_gateway.openai.realtime.session import (
    AudioFormat,
    RealtimeFunctionCall,
    RealtimeFunctionOutput,
    RealtimeInputAudio,
    RealtimeInputImage,
    RealtimeItem,
    RealtimeMessage,
    RealtimeOutputAudio,
    SessionConfig,
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
    return media_messages.decode_base64(text, len(text), param)


def encode_base64(data: bytes | bytearray) -> str:
    """Encode ``data`` as base64."""
    return pybase64.b64encode_as_string(data)


Event = dict[str, Any]


class ResponseEvents:
    """Builds the events of response ``id``; its items also go into ``conversation``, if any."""

    def __init__(
        self,
        id: str,
        config: SessionConfig,
        conversation: Conversation | None,
        new_id: Callable[[str], str],
        metadata: dict[str, str] | None = None,
    ) -> None:
        self.id = id
        self.items: list[ConversationItem] = []
        self._config = config
        self._conversation = conversation
        self._new_id = new_id
        self._metadata = metadata
        self._open: list[ConversationItem] = []  # a message, a call, or a call and the message before it

    def resume(self, items: Sequence[ConversationItem]) -> None:
        """Continue after ``items``, which another gateway has made and the conversation contains."""
        self.items = list(items)
        self._open = [item for item in items if item.status == "in_progress"]

    def begin(self) -> list[Event]:
        """Return the first event."""
        return [{"type": "response.created", "response": self._response("in_progress")}]

    def add_text(self, delta: str) -> list[Event]:
        """Add to the text, or to the transcript of a spoken answer."""
        events, item = self._grow_message(self._open[-1:], len(delta))
        item.parts[0].text += delta
        kind = "output_audio_transcript" if self._speaks else "output_text"
        return [*events, {"type": f"response.{kind}.delta", **self._place(item), "content_index": 0, "delta": delta}]

    def add_audio(self, data: bytes) -> list[Event]:
        """Add the next bytes of audio."""
        events, item = self._grow_message(self._open, len(data))
        item.parts[0].audio += data
        place = {**self._place(item), "content_index": 0}
        return [*events, {"type": "response.output_audio.delta", **place, "delta": encode_base64(data)}]

    def begin_call(self, name: str, call_id: str) -> list[Event]:
        """Begin a function call. Audio of the message before it may still follow."""
        item = ConversationItem(
            self._new_id("item_"), "function_call", status="in_progress", call_id=call_id, name=name
        )
        message = next((each for each in self._open if each.type == "message"), None)
        return self._open_item(item, beside=message if self._speaks else None)

    def add_arguments(self, delta: str) -> list[Event]:
        """Add to the arguments of the latest call."""
        item = self._open[-1] if self._open else None
        if item is None or item.type != "function_call":
            raise ProtocolError("the answer has arguments of a call that has not begun")
        self._grow(len(delta))
        item.text += delta
        place = {**self._place(item), "call_id": item.call_id}
        return [{"type": "response.function_call_arguments.delta", **place, "delta": delta}]

    def finish(self, status: str, details: Event | None = None, usage: Usage | None = None) -> list[Event]:
        """Return the closing events."""
        events = self._close_items("completed" if status == "completed" else "incomplete")
        response = self._response(status, details, usage)
        return [*events, {"type": "response.done", "response": response}]

    # Items

    @property
    def _speaks(self) -> bool:
        return self._config.modality == "audio"

    def _grow_message(self, among: Sequence[ConversationItem], nbytes: int) -> tuple[list[Event], ConversationItem]:
        """Reserve ``nbytes``, then open a message; if there is no room, open none."""
        self._grow(nbytes)
        try:
            return self._open_message(among)
        except OmnibusError:
            self._grow(-nbytes)
            raise

    def _open_message(self, among: Sequence[ConversationItem]) -> tuple[list[Event], ConversationItem]:
        """Find or create an open message; returns its first events, too."""
        for item in among:
            if item.type == "message":
                return [], item
        item = ConversationItem(self._new_id("item_"), "message", "assistant", "in_progress")
        events = self._open_item(item)
        format = self._config.output_format if self._speaks else None
        part = ItemPart("output_audio" if self._speaks else "output_text", audio=bytearray(), format=format)
        item.parts.append(part)
        place = {**self._place(item), "content_index": 0}
        return [*events, {"type": "response.content_part.added", **place, "part": self._shown_part(part)}], item

    def _open_item(self, item: ConversationItem, beside: ConversationItem | None = None) -> list[Event]:
        """Close all open items except ``beside``, and open ``item``; return the events of both."""
        # If the conversation is full, this raises before any change.
        before = self._conversation.insert_item(item) if self._conversation is not None else None
        events = self._close_items("completed", but=beside)
        self._open.append(item)
        self.items.append(item)
        item_fields = {"output_index": len(self.items) - 1, "item": item.to_event()}
        events.append({"type": "response.output_item.added", "response_id": self.id, **item_fields})
        if self._conversation is not None:
            event = {"type": "conversation.item.added", "previous_item_id": before, "item": item.to_event()}
            events.append(event)
        return events

    def _close_items(self, status: str, but: ConversationItem | None = None) -> list[Event]:
        closing_items = [item for item in self._open if item is not but]
        self._open = [item for item in self._open if item is but]
        return [event for item in closing_items for event in self._close_item(item, status)]

    def _close_item(self, item: ConversationItem, status: str) -> list[Event]:
        events = self._part_events(item)
        item.status = status
        item_event = item.to_event()
        if self._conversation is not None:
            events.append({"type": "conversation.item.done", "item": item_event})
        done_fields = {"response_id": self.id, "output_index": self.items.index(item), "item": item_event}
        return [*events, {"type": "response.output_item.done", **done_fields}]

    def _part_events(self, item: ConversationItem) -> list[Event]:
        """Return the events that close the part of ``item``."""
        place = self._place(item)
        if item.type == "function_call":
            place |= {"call_id": item.call_id, "name": item.name, "arguments": item.text}
            return [{"type": "response.function_call_arguments.done", **place}]
        part, place = item.parts[0], {**place, "content_index": 0}
        done_event = {"type": "response.content_part.done", **place, "part": self._shown_part(part)}
        if not self._speaks:
            return [{"type": "response.output_text.done", **place, "text": part.text}, done_event]
        transcript = {"type": "response.output_audio_transcript.done", **place, "transcript": part.text}
        return [{"type": "response.output_audio.done", **place}, transcript, done_event]

    def _place(self, item: ConversationItem) -> Event:
        return {"response_id": self.id, "item_id": item.id, "output_index": self.items.index(item)}

    def _shown_part(self, part: ItemPart) -> Event:
        """Format a part for events about parts: its type has another name there."""
        return {"type": "audio", "transcript": part.text} if self._speaks else {"type": "text", "text": part.text}

    def _grow(self, nbytes: int) -> None:
        if self._conversation is not None:
            self._conversation.count_growth(nbytes)

    def _response(self, status: str, details: Event | None = None, usage: Usage | None = None) -> Event:
        config = self._config
        output = {"format": config.output_format, "voice": config.voice or None}
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": status,
            "status_details": details,
            "output": [item.to_event() for item in self.items],
            "conversation_id": self._conversation.id if self._conversation is not None else None,
            "output_modalities": [config.modality],
            "max_output_tokens": config.max_output_tokens,
            "audio": {"output": output},
            "usage": _shown_usage(usage) if usage is not None else None,
            "metadata": self._metadata,
        }


def _shown_usage(usage: Usage) -> Event:
    prompt, output_details = usage.prompt_tokens_details, usage.completion_tokens_details
    text, image, sound = prompt.text_tokens or 0, prompt.image_tokens or 0, prompt.audio_tokens or 0
    speech_tokens = output_details.audio_tokens or 0
    return {
        "total_tokens": usage.total_tokens,
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "input_token_details": {
            "text_tokens": text,
            "audio_tokens": sound,
            "image_tokens": image,
            "cached_tokens": prompt.cached_tokens or 0,
            "cached_tokens_details": {"text_tokens": 0, "audio_tokens": 0, "image_tokens": 0},
        },
        "output_token_details": {"text_tokens": usage.completion_tokens - speech_tokens, "audio_tokens": speech_tokens},
    }


def incomplete_details(reason: str) -> Event:
    """Return the details of a response that the finish ``reason`` cut off."""
    return {"type": "incomplete", "reason": "max_output_tokens" if reason == "length" else "content_filter"}


def encode_events(events: Sequence[Event], new_id: Callable[[], str], encode: Callable[[Any], bytes]) -> list[bytes]:
    """Encode ``events`` as JSON, each with its own id."""
    return [encode({"type": each["type"], "event_id": new_id(), **each}) for each in events]
