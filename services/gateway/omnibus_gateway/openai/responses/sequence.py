"""Gapless numbers of a response's events, also if another gateway continues them.

A gateway that continues a response generates it again from its beginning. The number of tokens per event depends on the
executor's load, so the gateway compares the regenerated answer with the known one. Events must have the same kinds in
the same order, and deltas must add up to the same text. New events get the next numbers. If the answer differs, the
gateway does not continue it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from omnibus.errors import CannotContinue
from omnibus_gateway.openai.responses.events import TERMINAL, Event
from omnibus_gateway.openai.responses.items import OutputItem

#: Deltas of which only the length is compared: audio samples may differ by a rounding step.
_COUNTED = frozenset({"response.audio.delta"})

_encode = msgspec.json.Encoder().encode


class NumberedEvent(msgspec.Struct, frozen=True):
    """An event ready to send. ``body`` is its JSON in one line."""

    type: str
    number: int
    body: bytes

    @property
    def is_terminal(self) -> bool:
        return self.type in TERMINAL

    @property
    def frame(self) -> bytes:
        """The server-sent event in one piece, because some readers lose partial ones."""
        return b"event: %b\ndata: %b\n\n" % (self.type.encode(), self.body)


class ResponseEvent(msgspec.Struct, frozen=True):
    """An event in the OpenAPI document. Its other fields depend on its ``type``, and are those of OpenAI."""

    type: str
    sequence_number: int


class _EventHead(msgspec.Struct):
    type: str
    sequence_number: int
    delta: str | None = None


class _WholeItem(msgspec.Struct):
    item: OutputItem


_decode_item = msgspec.json.Decoder(_WholeItem).decode
_decode_head = msgspec.json.Decoder(_EventHead).decode


def read_event(body: bytes) -> NumberedEvent:
    """Decode a stored event. Raises ``msgspec.MsgspecError``."""
    head = _decode_head(body)
    return NumberedEvent(head.type, head.sequence_number, body)


def item_of(event: NumberedEvent) -> list[Any]:
    """Return the item that ``event`` completes, or [] for other events."""
    return [_decode_item(event.body).item] if event.type == "response.output_item.done" else []


class EventSequence:
    """Numbering of a response's events; skips the first ones, which are ``known_events``."""

    def __init__(self, known_events: Sequence[NumberedEvent] = ()) -> None:
        self._next = len(known_events)
        # The model generates text and audio concurrently, so only the order within each is reproducible.
        self._known: dict[str, _KnownEvents] = {}
        for event in known_events:
            self._known.setdefault(_channel(event.type), _KnownEvents()).events.append(event)

    @classmethod
    def after(cls, known_events: Sequence[NumberedEvent]) -> "EventSequence":
        """Create a numbering that starts after ``known_events`` without comparing events."""
        sequence = cls()
        sequence._next = len(known_events)
        return sequence

    def number(self, events: Iterable[Event]) -> list[NumberedEvent]:
        """Number the new ones of ``events``. Raises ``CannotContinue`` if the others differ from the known ones."""
        return [self._number_event(event) for each in events if (event := self._skip_known(each)) is not None]

    def _skip_known(self, event: Event) -> Event | None:
        if event["type"] in TERMINAL and any(not known_channel.is_passed for known_channel in self._known.values()):
            raise CannotContinue(_DIVERGED_MESSAGE)
        known_events = self._known.get(_channel(event["type"]))
        return known_events.skip(event) if known_events is not None else event

    def _number_event(self, event: Event) -> NumberedEvent:
        number, self._next = self._next, self._next + 1
        head: dict[str, Any] = {"type": event["type"], "sequence_number": number}
        return NumberedEvent(event["type"], number, _encode(head | event))


class _KnownEvents:
    """Known events of one channel, and the position of the comparison."""

    def __init__(self) -> None:
        self.events: list[NumberedEvent] = []
        self._at = 0
        self._taken = 0  # characters of the delta at that position

    @property
    def is_passed(self) -> bool:
        return self._at >= len(self.events)

    def skip(self, event: Event) -> Event | None:
        """Return the new part of ``event``; None if it has none."""
        if self.is_passed:
            return event
        if isinstance(event.get("delta"), str):
            rest = self._skip_delta(event["type"], event["delta"])
            return {**event, "delta": rest} if rest else None
        if self.events[self._at].type != event["type"] or self._taken:
            raise CannotContinue(_DIVERGED_MESSAGE)
        self._at += 1
        return None

    def _skip_delta(self, type: str, delta: str) -> str:
        while delta and not self.is_passed:
            known_event = self.events[self._at]
            if known_event.type != type:
                raise CannotContinue(_DIVERGED_MESSAGE)
            text = (_decode_head(known_event.body).delta or "")[self._taken :]
            length = min(len(text), len(delta))
            if type not in _COUNTED and text[:length] != delta[:length]:
                raise CannotContinue(_DIVERGED_MESSAGE)
            delta = delta[length:]
            self._taken += length
            if length == len(text):
                self._at, self._taken = self._at + 1, 0
        return delta


def _channel(type: str) -> str:
    if type.startswith("response.audio.transcript."):
        return "transcript"
    return "audio" if type.startswith("response.audio.") else "items"


_DIVERGED_MESSAGE = "the regenerated response differs, so it cannot be continued: send the request again"
