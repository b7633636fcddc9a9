"""Number of gateways, by which each divides a tenant's limits.

A limit is divided by the gateways with recent heartbeats. Together they allow no more than the limit, rounded up to one
request each. A tenant gets all of it if its requests are spread evenly, and a G-th if it uses one of G gateways. After
a gateway dies, its part is unused for ``GATEWAY_ABSENT_SECONDS``. After one joins, there is one part too many for one
heartbeat.
"""

import time
from collections.abc import Callable

from omnibus.bus.heartbeats import GATEWAY_ABSENT_SECONDS
from omnibus.bus.messages import GatewayStatus
from omnibus.cluster.presence import PresenceTracker


class GatewayPeers:
    """All gateways, including this one; pass events of ``subjects.GATEWAY`` to ``handle_status``."""

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
        """Number of gateways, at least 1."""
        return 1 + len(self._others.entries())
