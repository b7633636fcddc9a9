"""Reconnects of the bus: just after one, a late peer looks like a lost one.

A cluster may lose another server than the connected one: then the connections of other clients are made again.
"""

import time
from math import inf

from omnibus.bus import Bus


class ReconnectMonitor:
    """Monitors one connection. Call it now and then: only a call detects a reconnect."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._reconnects = bus.reconnects
        self._at = -inf

    def reconnected_within(self, seconds: float) -> bool:
        """Return whether the connection was made again in the last ``seconds``."""
        if self._reconnects != self._bus.reconnects:
            self._reconnects, self._at = self._bus.reconnects, time.monotonic()
        return time.monotonic() - self._at < seconds


class RefusalMonitor:
    """Evaluates the servers' reports that a peer has no subscriber.

    The report of a single server is reliable. In a cluster, the peer may have lost its server and be connecting to
    another one. It is gone if it still cannot be found after ``grace`` seconds.
    """

    def __init__(self, bus: Bus, grace: float) -> None:
        self._bus = bus
        self._grace = grace
        self._refused: dict[str, float] = {}  # peer to the monotonic seconds of the first refusal

    def confirms_loss(self, peer: str) -> bool:
        """Record a refusal of ``peer``; returns whether it is gone."""
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
        """Record a message of ``peer``, which is therefore alive."""
        self._refused.pop(peer, None)

    def overdue_peers(self) -> list[str]:
        """Return the peers whose grace is over: probe them again."""
        now = time.monotonic()
        self._refused = {peer: at for peer, at in self._refused.items() if now - at < 2 * self._grace}
        return [peer for peer, at in self._refused.items() if now - at >= self._grace]
