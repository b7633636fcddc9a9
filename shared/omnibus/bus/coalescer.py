"""Coalescing of small messages: one publish per receiver and turn of the loop.

Pieces of text that follow each other within imperceptible time become one piece.
"""

import asyncio
import logging
from math import inf
from time import monotonic
from typing import Protocol

from omnibus.bus import Bus
from omnibus.bus.messages import FRAME_OVERHEAD_BYTES, check_message_size, join_frames
from omnibus.errors import OmnibusError

log = logging.getLogger(__name__)

#: Longest delay of a message that is not awaited, so that it shares a frame and does not wake its receiver.
LAZY_FLUSH_SECONDS = 0.02
#: Seconds after a send in which pieces of text are held and joined: two frames of a screen. If two steps of an engine
#: take longer, each piece is sent at once.
PIECE_FLUSH_SECONDS = 0.033


class HeldPiece(Protocol):
    """The next piece of a stream, which grows until it is sent."""

    def flush_held(self) -> None:
        """Send the current content, unless it was sent before."""


class Outbox:
    """Queue of outgoing messages, one per process. ``send`` never waits.

    Order per subject is kept, except for held pieces of text. With ``unheard`` set, the server answers a frame without
    a subscriber with a refusal on ``<unheard>.<receiver>``.
    """

    def __init__(self, bus: Bus, limit: int, unheard: str = "") -> None:
        self._bus = bus
        self._limit = limit
        self._most_bytes = limit - FRAME_OVERHEAD_BYTES
        self._unheard = unheard
        self._waiting: dict[str, list[bytes]] = {}
        self._lazy: dict[str, list[bytes]] = {}  # by subject without an urgent message
        self._soon = False
        self._timer: asyncio.TimerHandle | None = None
        self._held: list[HeldPiece] = []
        self._grows = False  # pieces have grown in this turn
        self._release: asyncio.TimerHandle | None = None
        self._grown_at = self._released_at = -inf  # of ``monotonic``

    def send(self, subject: str, message: bytes, lazy: bool = False) -> None:
        """Queue ``message`` for ``subject``.

        ``lazy`` ones are sent with the next urgent one for ``subject``, or after ``LAZY_FLUSH_SECONDS``. Raises
        ``ProtocolError`` for a message over the limit. Raised here, it affects only its sender; in ``flush``, it would
        affect all messages of the frame.
        """
        if len(message) > self._most_bytes:  # checked here as well, to save a call for each token
            check_message_size(message, self._limit)
        waiting = self._waiting.get(subject)
        if waiting is not None:
            waiting.append(message)
            if not lazy:
                self._bus.flush_soon()
        elif lazy:
            self._lazy.setdefault(subject, []).append(message)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(LAZY_FLUSH_SECONDS, self._publish_lazy)
        else:
            self._waiting[subject] = [*self._lazy.pop(subject, ()), message] if self._lazy else [message]
            if not self._soon:
                self._soon = True
                self._bus.call_before_flush(self._publish_waiting)
            else:
                self._bus.flush_soon()

    def hold(self, piece: HeldPiece) -> None:
        """Send ``piece`` within ``PIECE_FLUSH_SECONDS``; see ``note_growth``."""
        self._held.append(piece)
        self.note_growth()

    def note_growth(self) -> None:
        """Record that held pieces have grown in this turn.

        At the end of the turn they are sent, unless the next growth is expected soon enough to be sent with them. It is
        expected after the same time as between the last two.
        """
        if not self._grows:
            self._grows = True
            asyncio.get_running_loop().call_soon(self._end_growth)

    def _end_growth(self) -> None:
        """Send the pieces of this turn, or wait for the next ones."""
        now = monotonic()
        due, next_piece = self._released_at + PIECE_FLUSH_SECONDS, now + (now - self._grown_at)
        self._grows, self._grown_at = False, now
        if not self._held:
            return
        if next_piece >= due:
            self.flush()
        elif self._release is None:
            self._release = asyncio.get_running_loop().call_later(due - now, self.flush)

    def flush(self) -> None:
        """Publish all queued messages and held pieces."""
        if self._release is not None:
            self._release.cancel()
            self._release = None
        self._released_at = monotonic()
        pieces, self._held = self._held, []
        self._soon = True  # no further flush is necessary
        for piece in pieces:
            try:
                piece.flush_held()
            except OmnibusError as error:  # receivers notice the loss by their deadlines
                log.error("a piece was not sent: %s", error)
        if self._timer is not None:
            self._timer.cancel()
        self._publish_lazy()

    def _publish_lazy(self) -> None:
        """Publish all queued messages, including lazy ones."""
        self._timer = None
        lazy, self._lazy = self._lazy, {}
        for subject, messages in lazy.items():  # no subject is in both
            self._waiting[subject] = messages
        self._publish_waiting()

    def _publish_waiting(self) -> None:
        self._soon = False
        waiting, self._waiting = self._waiting, {}
        for subject, messages in waiting.items():
            reply = f"{self._unheard}.{subject.rpartition('.')[2]}" if self._unheard else ""
            try:
                for frame in join_frames(messages, self._limit):
                    self._bus.publish(subject, frame, reply=reply)
            except OmnibusError as error:  # receivers notice the loss by their deadlines
                log.error("%d messages for %s were not sent: %s", len(messages), subject, error)
