"""Number of gateways: each one gives a tenant its part of the tenant's limits.

What holds: a limit is divided by the gateways that were heard lately, so all of them together give no more than the
limit, rounded up to one request each, and all of it to a tenant whose requests are spread evenly. A tenant that asks
one of G gateways alone gets a G-th. For ``GATEWAY_ABSENT_SECONDS`` after one has died its part is nobody's, and for one
heartbeat after one has come there is a part too much.
"""

import time
from collections.abc import Callable

from omnibus.bus.heartbeats import GATEWAY_ABSENT_SECONDS
from omnibus.bus.messages import GatewayStatus
from omnibus.cluster.presence import PresenceTracker


class GatewayPeers:
    """The gateways, this one included; give events of ``subjects.GATEWAY`` to ``handle_status``."""

    def __init__(self, me: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._me = me
        self._others = PresenceTracker[bool](GATEWAY_ABSENT_SECONDS, clock)

    def handle_status(self, status: GatewayStatus) -> None:
        if status.state == "gone":
            self._others.remove(status.id)
        elif status.id != self._me:
            self._others.record(status.id, True)

    @property
    def count(self) -> int:
        """At least 1."""
        return 1 + len(self._others.entries())
