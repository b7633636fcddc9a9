"""Answers that are begun in the silence that may end a turn, before it is long enough to end it.

What a model hears of a turn is the same whether its answer was begun early or not, so the answer is, too. Until the
turn has ended nothing of it is read, sent, logged or counted against its key's requests; where the user goes on
speaking its request ends as any that is cancelled.
"""

from collections.abc import Callable
from typing import NamedTuple

from omnibus.errors import OmnibusError
from omnibus.metrics import GATEWAY
from services.gateway.openai.realtime.session import SessionConfig
from services.gateway.realtime.conversation import ConversationItem
from services.gateway.realtime.response_events import Event, ResponseEvents
from services.gateway.realtime.turn import TURN_DETECTED, Turn

#: Answers that are begun early in one turn: who pauses more often is answered when it has ended.
MAX_PAUSES = 8
#: Seconds of a turn beyond which no answer is begun early: all of its audio is encoded again at each pause.
MAX_SECONDS = 60

#: Makes an answer to items that is not begun yet, and what builds its events.
_CreateTurn = Callable[[SessionConfig, list[ConversationItem]], tuple[Turn, ResponseEvents]]


class EarlyTurn(NamedTuple):
    """A response that was begun before the last of the ``items`` that it answers was known to be complete."""

    turn: Turn
    events: ResponseEvents
    config: SessionConfig
    items: list[ConversationItem]

    def answers(self, config: SessionConfig, items: list[ConversationItem]) -> bool:
        """Return whether it is the answer to ``items``."""
        *before, last = self.items
        return (
            self.config == config
            and len(items) == len(self.items)
            and all(mine is theirs for mine, theirs in zip(before, items, strict=False))
            and last.id == items[-1].id
            and [each.model_audio for each in last.parts] == [each.model_audio for each in items[-1].parts]
        )


class EarlyAnswers:
    """The answer of one session that was begun early, at most one at a time."""

    def __init__(self, create_turn: _CreateTurn) -> None:
        self._create_turn = create_turn
        self._current: EarlyTurn | None = None
        self._item_id, self._at_ms, self._count = "", 0, 0  # of the pause in which one was begun last

    def is_due(self, item_id: str, begin_ms: int, at_ms: int) -> bool:
        """Return whether to begin one, which is once a pause: the item that began ``begin_ms`` may end ``at_ms``."""
        if (item_id, at_ms) == (self._item_id, self._at_ms) or at_ms - begin_ms > MAX_SECONDS * 1000:
            return False
        self._count = self._count + 1 if item_id == self._item_id else 1
        self._item_id, self._at_ms = item_id, at_ms
        return self._count <= MAX_PAUSES

    def begin(self, config: SessionConfig, items: list[ConversationItem]) -> None:
        """Begin to answer ``items``; nothing of it is seen unless it is taken."""
        try:
            turn, events = self._create_turn(config, items)
        except OmnibusError:  # its client is told when the turn has ended
            return
        self._current = EarlyTurn(turn, events, config, items)
        turn.start()

    def take(
        self, config: SessionConfig, items: list[ConversationItem], end: Callable[[Turn, list[Event]], None]
    ) -> EarlyTurn | None:
        """The answer to ``items`` if it was begun and goes on; ``end`` is called when it is over."""
        early = self._current
        if early is None or not early.answers(config, items) or not early.turn.confirm(end):
            return None
        self._current = None
        GATEWAY.realtime_early.labels(config.model, "used").inc()
        return early

    async def drop(self) -> None:
        """End what was begun: its user goes on speaking, or what it answers has changed."""
        early, self._current = self._current, None
        if early is not None:
            await early.turn.cancel(TURN_DETECTED)
