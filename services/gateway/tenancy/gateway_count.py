"""Number of gateways: each one gives a tenant its part of the tenant's limits.

What holds: a limit is divided by the gateways that were heard lately, so all of them together give no more than the
limit, rounded up to one request each, and all of it to a tenant whose requests are spread evenly. A tenant that asks
one of G gateways alone gets a G-th. For ``SILENT`` seconds after one has died its part is nobody's, and for one beat
after one has come there is a part too much.
"""

import time
from collections.abc import Callable

from omnibus.bus import Delivery, messages
from omnibus.errors import ProtocolError

#: Seconds between two words of a gateway, and without one until it is not counted any more.
HEARTBEAT_SECONDS, LOST_AFTER_SECONDS = 2.0, 7.0


class GatewayPeers:
    """The gateways, this one included; give events of ``subjects.GATEWAY`` to ``handle_status``."""

    def __init__(self, me: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._me = me
        self._clock = clock
        self._seen: dict[str, float] = {}

    def handle_status(self, delivery: Delivery) -> None:
        try:
            status = messages.decode_gateway(delivery.data)
        except ProtocolError:  # of another build, which is counted when it says something that is understood
            return
        if status.state == "gone":
            self._seen.pop(status.id, None)
        elif status.id != self._me:
            self._seen[status.id] = self._clock()

    @property
    def count(self) -> int:
        """At least 1."""
        oldest = self._clock() - LOST_AFTER_SECONDS
        for id in [id for id, seen in self._seen.items() if seen < oldest]:
            del self._seen[id]
        return 1 + len(self._seen)
