"""Reconnects of the bus: for a moment after one nobody can tell who is gone and who is only late."""

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
