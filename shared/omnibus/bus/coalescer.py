"""Coalesces small messages: what is ready for one receiver in one turn of the loop is one publish.

Pieces of text that follow each other within a moment, too close for anybody to notice, are one piece.
"""

import asyncio
import logging
from math import inf
from typing import Protocol

from omnibus.bus import Bus
from omnibus.bus.messages import FRAME_OVERHEAD_BYTES, check_message_size, join_frames
from omnibus.errors import OmnibusError

log = logging.getLogger(__name__)

#: Seconds that a message nobody waits for may be held back to share a frame.
LAZY_FLUSH_SECONDS = 0.005
#: Seconds after anything has left in which pieces of text are held back to become one. Engines that take longer for a
#: step have each piece leave at once.
PIECE_FLUSH_SECONDS = 0.002


class HeldPiece(Protocol):
    """The next piece of a stream, which grows until it leaves."""

    def flush_held(self) -> None:
        """Send what there is by now; nothing, if it was sent before."""


class Outbox:
    """One per process. ``send`` never waits; order per subject is kept.

    With ``unheard`` set, a frame that nobody listens for comes back as refused on ``<unheard>.<receiver>``.
    """

    def __init__(self, bus: Bus, limit: int, unheard: str = "") -> None:
        self._bus = bus
        self._limit = limit
        self._most_bytes = limit - FRAME_OVERHEAD_BYTES
        self._unheard = unheard
        self._waiting: dict[str, list[bytes]] = {}
        self._soon = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._held: list[HeldPiece] = []
        self._flushed_at = -inf  # the event loop's time

    def send(self, subject: str, message: bytes, lazy: bool = False) -> None:
        """Queue ``message``; ``lazy`` ones leave with the next urgent one or after ``LAZY`` seconds.

        Raises ``ProtocolError`` for one that is over the limit: here its sender alone is hit, in ``flush``
        all who share the frame would be.
        """
        if len(message) > self._most_bytes:  # checked here as well: a call less for each token
            check_message_size(message, self._limit)
        self._waiting.setdefault(subject, []).append(message)
        if self._soon:
            return
        loop = asyncio.get_running_loop()
        if not lazy:
            self._soon = True
            loop.call_soon(self.flush)
        elif self._timer is None:
            self._start_timer(loop, loop.time() + LAZY_FLUSH_SECONDS)

    def hold(self, piece: HeldPiece) -> None:
        """Have ``piece`` send itself by the end of this turn, or ``PIECE_FLUSH_SECONDS`` after anything has left."""
        self._held.append(piece)
        if self._soon:
            return
        loop = asyncio.get_running_loop()
        due = self._flushed_at + PIECE_FLUSH_SECONDS
        if loop.time() >= due:
            self._soon = True
            loop.call_soon(self.flush)
        elif self._timer is None or self._timer_due > due:
            self._start_timer(loop, due)

    def _start_timer(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        """Flush at ``due``, the event loop's time, and not before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(due, self.flush)
        self._timer_due = due  # uvloop's handle does not know it where it is near

    def flush(self) -> None:
        """Publish everything that waits."""
        if self._held:
            self._soon = True  # no other flush need follow
            held, self._held = self._held, []
            for piece in held:
                try:
                    piece.flush_held()
                except OmnibusError as error:  # the deadlines of who waits for it cover what is lost here
                    log.error("a piece was not sent: %s", error)
        self._soon = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._flushed_at = asyncio.get_running_loop().time()
        waiting, self._waiting = self._waiting, {}
        for subject, messages in waiting.items():
            reply = f"{self._unheard}.{subject.rpartition('.')[2]}" if self._unheard else ""
            try:
                for frame in join_frames(messages, self._limit):
                    self._bus.publish(subject, frame, reply=reply)
            except OmnibusError as error:  # the receivers' deadlines cover what is lost here
                log.error("%d messages for %s were not sent: %s", len(messages), subject, error)
