"""Outgoing events of one session: numbered, and logged with the state that another gateway needs."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from omnibus.errors import OmnibusError
from omnibus.recording.sessions import InsertedItem, SessionEntry
from omnibus_gateway.openai.realtime.session import encode_event
from omnibus_gateway.realtime.conversation import ConversationItem
from omnibus_gateway.realtime.errors import describe_error
from omnibus_gateway.realtime.event_sender import EventSender
from omnibus_gateway.realtime.input_turns import InputTurns
from omnibus_gateway.realtime.logged_items import to_logged
from omnibus_gateway.realtime.response_events import Event, encode_events
from omnibus_gateway.realtime.resume_token import event_id


class SessionEvents:
    """Numbers and posts events of session ``id``; ``posted_count`` is the last number.

    The next log entry contains the changes of its ``input`` since the last one.
    """

    def __init__(self, id: str, outbox: EventSender, input: InputTurns, posted_count: int = 0) -> None:
        self._id = id
        self._outbox = outbox
        self._input = input
        self._posted = posted_count

    def post(self, events: Sequence[Event], **changes: Any) -> None:
        """Send ``events``. ``changes`` are further fields of ``SessionEntry`` for the log."""
        bodies = encode_events(events, self._next_event_id, encode_event)
        entry = self._build_entry(bodies, changes) if self._outbox.has_log else None
        if bodies or entry is not None:
            self._outbox.post_texts([body.decode() for body in bodies], entry)

    def post_error(self, error: OmnibusError, event_id: str | None = None) -> None:
        """Send an ``error`` event about the event ``event_id``."""
        self.post([{"type": "error", "error": {**describe_error(error), "event_id": event_id}}])

    def post_item(self, item: ConversationItem, before: str | None, after: str | None = None) -> None:
        """Announce ``item``, inserted after ``before``; ``after`` is the position that the client requested."""
        self.post(_describe_item(item, before), inserted=self._log_item(item, after))

    def post_committed(self, item: ConversationItem, before: str | None) -> None:
        """Announce that the input audio is ``item``, inserted after ``before``."""
        committed_event = {"type": "input_audio_buffer.committed", "previous_item_id": before, "item_id": item.id}
        self.post([committed_event, *_describe_item(item, before)], inserted=self._log_item(item, None))

    def _next_event_id(self) -> str:
        self._posted += 1
        return event_id(self._id, self._posted)

    def _build_entry(self, bodies: Sequence[bytes], changes: Mapping[str, Any]) -> SessionEntry | None:
        input = self._input.take_change()
        if not bodies and input is None and not any(value not in (None, {}, "") for value in changes.values()):
            return None
        return SessionEntry(at=time.time(), events=tuple(map(msgspec.Raw, bodies)), input=input, **changes)

    def _log_item(self, item: ConversationItem, after: str | None) -> InsertedItem | None:
        return InsertedItem(to_logged(item), after) if self._outbox.has_log else None


def _describe_item(item: ConversationItem, before: str | None) -> list[Event]:
    item_fields = {"previous_item_id": before, "item": item.to_event()}
    return [{"type": "conversation.item.added", **item_fields}, {"type": "conversation.item.done", **item_fields}]
