"""Events of one response, built from the output of a model.

The first event is ``response.created``, the last one ``response.done``. Between them, each item has, in this order:

- ``response.output_item.added``, ``conversation.item.added``, ``response.content_part.added``
- its deltas and their ``done`` events
- ``response.content_part.done``, ``conversation.item.done``, ``response.output_item.done``

A spoken message is done when all of its audio has arrived, which may be after later calls have begun. A response that
is cut short also has all closing events.
"""

from collections.abc import Callable, Sequence
from typing import Any

from omnibus.errors import OmnibusError, ProtocolError
from omnibus_gateway.openai.chat_response import Usage
from omnibus_gateway.openai.realtime.session import SessionConfig
from omnibus_gateway.realtime.conversation import Conversation, ConversationItem, ItemPart, encode_base64

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
