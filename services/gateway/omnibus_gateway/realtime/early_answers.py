"""Early answers: they start in a pause that is too short to end the turn.

The model receives the same audio whether or not its answer started early, so the answer is the same too. Before the
turn ends, the output of an early answer is not read, sent, logged or counted against the request limit of the key. If
the user continues to speak, the request of the early answer is cancelled.
"""

from collections.abc import Callable
from typing import NamedTuple

from omnibus.errors import OmnibusError
from omnibus.metrics import GATEWAY
from omnibus_gateway.openai.realtime.session import SessionConfig
from omnibus_gateway.realtime.conversation import ConversationItem
from omnibus_gateway.realtime.response_events import Event, ResponseEvents
from omnibus_gateway.realtime.turn import TURN_DETECTED, Turn

#: Early answers in one turn; after more pauses, the answer starts when the turn has ended.
MAX_PAUSES = 8
#: Longest turn, in seconds, for early answers: all of its audio is encoded again at each pause.
MAX_SECONDS = 60

#: Creates a turn that answers items, not started yet, and the builder of its events.
_CreateTurn = Callable[[SessionConfig, list[ConversationItem]], tuple[Turn, ResponseEvents]]


class EarlyTurn(NamedTuple):
    """Response that started before the last of its ``items`` was complete."""

    turn: Turn
    events: ResponseEvents
    config: SessionConfig
    items: list[ConversationItem]

    def answers(self, config: SessionConfig, items: list[ConversationItem]) -> bool:
        """Return True if it is the answer to ``items``."""
        *before, last = self.items
        return (
            self.config == config
            and len(items) == len(self.items)
            and all(own_item is new_item for own_item, new_item in zip(before, items, strict=False))
            and last.id == items[-1].id
            and [each.model_audio for each in last.parts] == [each.model_audio for each in items[-1].parts]
        )


class EarlyAnswers:
    """Early answer of one session, at most one at a time."""

    def __init__(self, create_turn: _CreateTurn) -> None:
        self._create_turn = create_turn
        self._current: EarlyTurn | None = None
        self._item_id, self._at_ms, self._count = "", 0, 0  # of the pause in which the last one started

    def is_due(self, item_id: str, begin_ms: int, at_ms: int) -> bool:
        """Return True once per pause: the item that began at ``begin_ms`` may end at ``at_ms``."""
        if (item_id, at_ms) == (self._item_id, self._at_ms) or at_ms - begin_ms > MAX_SECONDS * 1000:
            return False
        self._count = self._count + 1 if item_id == self._item_id else 1
        self._item_id, self._at_ms = item_id, at_ms
        return self._count <= MAX_PAUSES

    def begin(self, config: SessionConfig, items: list[ConversationItem]) -> None:
        """Start an answer to ``items``; its output is not sent until ``take``."""
        try:
            turn, events = self._create_turn(config, items)
        except OmnibusError:  # the client gets the error when the turn has ended
            return
        self._current = EarlyTurn(turn, events, config, items)
        turn.start()

    def take(
        self, config: SessionConfig, items: list[ConversationItem], end: Callable[[Turn, list[Event]], None]
    ) -> EarlyTurn | None:
        """Return the early answer to ``items`` if it is still running; it calls ``end`` when it ends."""
        early = self._current
        if early is None or not early.answers(config, items) or not early.turn.confirm(end):
            return None
        self._current = None
        GATEWAY.realtime_early.labels(config.model, "used").inc()
        return early

    async def drop(self) -> None:
        """Cancel the early answer: the user continues to speak, or the items have changed."""
        early, self._current = self._current, None
        if early is not None:
            await early.turn.cancel(TURN_DETECTED)
