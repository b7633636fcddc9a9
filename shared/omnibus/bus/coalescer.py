"""Coalesces small messages: what is ready for one receiver in one turn of the loop is one publish.

Pieces of text that follow each other within a moment, too close for anybody to notice, are one piece.
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

#: Seconds that a message nobody waits for may be held back to share a frame, so that its receiver is not woken for it.
LAZY_FLUSH_SECONDS = 0.02
#: Seconds after pieces of text have left in which others are held back to become one with what follows them. Of engines
#: that take longer for a step each piece leaves at once.
PIECE_FLUSH_SECONDS = 0.008


class HeldPiece(Protocol):
    """The next piece of a stream, which grows until it leaves."""

    def flush_held(self) -> None:
        """Send what there is by now; nothing, if it was sent before."""


class Outbox:
    """One per process. ``send`` never waits; order per subject is kept, but for pieces of text that are held back.

    With ``unheard`` set, a frame that nobody listens for comes back as refused on ``<unheard>.<receiver>``.
    """

    def __init__(self, bus: Bus, limit: int, unheard: str = "") -> None:
        self._bus = bus
        self._limit = limit
        self._most_bytes = limit - FRAME_OVERHEAD_BYTES
        self._unheard = unheard
        self._waiting: dict[str, list[bytes]] = {}
        self._lazy: dict[str, list[bytes]] = {}  # of subjects for which nothing urgent waits
        self._soon = False
        self._timer: asyncio.TimerHandle | None = None
        self._held: list[HeldPiece] = []
        self._grows = False  # pieces have grown in this turn
        self._release: asyncio.TimerHandle | None = None
        self._grown_at = self._released_at = -inf  # of ``monotonic``

    def send(self, subject: str, message: bytes, lazy: bool = False) -> None:
        """Queue ``message``; ``lazy`` ones leave with the next urgent one for ``subject``, or after some milliseconds
        (``LAZY_FLUSH_SECONDS``).

        Raises ``ProtocolError`` for one that is over the limit: here its sender alone is hit, in ``flush``
        all who share the frame would be.
        """
        if len(message) > self._most_bytes:  # checked here as well: a call less for each token
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
        """Have ``piece`` send itself within ``PIECE_FLUSH_SECONDS``; see ``note_growth``."""
        self._held.append(piece)
        self.note_growth()

    def note_growth(self) -> None:
        """Held pieces have grown. By the end of this turn they leave, unless the next growth comes soon enough for
        both to leave together: if it comes as soon as this one has come after the one before.
        """
        if not self._grows:
            self._grows = True
            asyncio.get_running_loop().call_soon(self._end_growth)

    def _end_growth(self) -> None:
        """All pieces of this turn are there: let them leave, or wait for the next ones."""
        now = monotonic()
        due, expected = self._released_at + PIECE_FLUSH_SECONDS, now + (now - self._grown_at)
        self._grows, self._grown_at = False, now
        if not self._held:
            return
        if expected >= due:
            self.flush()
        elif self._release is None:
            self._release = asyncio.get_running_loop().call_later(due - now, self.flush)

    def flush(self) -> None:
        """Publish everything that waits, and what is held back."""
        if self._release is not None:
            self._release.cancel()
            self._release = None
        self._released_at = monotonic()
        held, self._held = self._held, []
        self._soon = True  # no other flush need follow
        for piece in held:
            try:
                piece.flush_held()
            except OmnibusError as error:  # the deadlines of who waits for it cover what is lost here
                log.error("a piece was not sent: %s", error)
        if self._timer is not None:
            self._timer.cancel()
        self._publish_lazy()

    def _publish_lazy(self) -> None:
        """Publish everything that waits, what nobody waits for as well."""
        self._timer = None
        lazy, self._lazy = self._lazy, {}
        for subject, messages in lazy.items():  # nothing is in both
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
            except OmnibusError as error:  # the receivers' deadlines cover what is lost here
                log.error("%d messages for %s were not sent: %s", len(messages), subject, error)
