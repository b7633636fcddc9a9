"""Reconnects of the bus: for a moment after one nobody can tell who is gone and who is only late.

Of a cluster of servers one may be lost that is not ours: then it is the others' connections that come back.
"""

import time
from math import inf

from omnibus.bus import Bus


class ReconnectMonitor:
    """Watches one connection. Ask it now and then: it learns of a reconnect when it is asked."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._reconnects = bus.reconnects
        self._at = -inf

    def reconnected_within(self, seconds: float) -> bool:
        """Return whether the connection came back in the last ``seconds``."""
        if self._reconnects != self._bus.reconnects:
            self._reconnects, self._at = self._bus.reconnects, time.monotonic()
        return time.monotonic() - self._at < seconds


class RefusalMonitor:
    """Judges what servers say of peers: that nobody listens where one should.

    Of one server that is true. Of several, the peer may have lost its server and be on the way to another one: it is
    gone if it cannot be found after ``grace`` seconds either.
    """

    def __init__(self, bus: Bus, grace: float) -> None:
        self._bus = bus
        self._grace = grace
        self._refused: dict[str, float] = {}  # peer to the monotonic seconds of the first refusal

    def confirms_loss(self, peer: str) -> bool:
        """Take a refusal of ``peer``; returns whether it is gone."""
        if not self._bus.clustered:
            return True
        now = time.monotonic()
        first = self._refused.setdefault(peer, now)
        if now - first < self._grace:
            return False
        if now - first < 2 * self._grace:
            del self._refused[peer]
            return True
        self._refused[peer] = now  # it was found in between
        return False

    def note_sign_of_life(self, peer: str) -> None:
        """``peer`` has been heard of: it is there."""
        self._refused.pop(peer, None)

    def overdue_peers(self) -> list[str]:
        """Peers whose grace is over: to be looked for again."""
        now = time.monotonic()
        self._refused = {peer: at for peer, at in self._refused.items() if now - at < 2 * self._grace}
        return [peer for peer, at in self._refused.items() if now - at >= self._grace]
