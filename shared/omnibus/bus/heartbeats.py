"""Intervals of reports on the bus, and limits of silence, in seconds.

docs/reliability.md lists the decisions that follow from silence. A limit is longer if a false alarm costs more:
heartbeats are late on a busy machine.

Reconnects of the bus: just after one, a late peer looks like a lost one.

A cluster may lose another server than the connected one: then the connections of other clients are made again.
"""

import time
from math import inf

from omnibus.bus import Bus

EXECUTOR_HEARTBEAT_SECONDS = 0.5
#: Digest of heartbeats by a relay, see ``omnibus.bus.relays``, and its announcement to executors.
DIGEST_SECONDS = 0.15
RELAY_ANNOUNCE_SECONDS = 1.0
#: Whole status of an executor in digests: a reader that missed one gets no heartbeats of it until then.
WHOLE_STATUS_SECONDS = 5.0
#: Heartbeat of a gateway that follows a plan. It also reports when its plan changes, and on census.
GATEWAY_HEARTBEAT_SECONDS = 2.0
#: Load report of a gateway that has requests in flight.
LOAD_REPORT_SECONDS = 1.0
#: Heartbeat of a sidecar that other sidecars pull from.
NODE_HEARTBEAT_SECONDS = 1.0
#: Heartbeat of a machine's agent, for planners.
AGENT_HEARTBEAT_SECONDS = 1.0
#: Census by ``omnibus top``.
CENSUS_INTERVAL_SECONDS = 5.0

#: A heartbeat is late: the executor is probed repeatedly. A false alarm costs one empty message.
EXECUTOR_PROBE_SECONDS = 0.75
#: Two heartbeats: it gets no new work. A false alarm gives other executors more work.
EXECUTOR_SUSPECT_SECONDS = 1.2
#: Three digests: the gateways read the relay's heartbeats themselves for a while. A false alarm costs their deliveries.
DIGEST_SILENT_SECONDS = 0.5
#: Two announcements: executors choose another relay, or none. A false alarm costs the deliveries of their heartbeats.
RELAY_ABSENT_SECONDS = 2.5
#: Six heartbeats: it does not count as ready or present. A false alarm makes a rollout wait.
EXECUTOR_ABSENT_SECONDS = 3.0
#: Eight heartbeats: its invocations move. A false alarm costs their computation.
EXECUTOR_LOST_SECONDS = 4.0
#: The same if no other executor can take the work; until then it still gets work. A false alarm fails requests.
EXECUTOR_LAST_RESORT_SECONDS = 15.0
#: Three heartbeats: its part of the tenants' limits goes to the other gateways, and requests for files do not wait for
#: its answer. A false alarm exceeds the limits.
GATEWAY_ABSENT_SECONDS = 7.0
#: Three censuses: a gateway is no longer shown.
GATEWAY_FORGOTTEN_SECONDS = 15.0
#: Three reports: a gateway's requests in flight no longer count.
LOAD_ABSENT_SECONDS = 3.0
#: Three heartbeats: the node is shown as gone. A false alarm costs nothing, since only a pull shows whether a node can
#: be reached.
NODE_ABSENT_SECONDS = 3.5
#: Five heartbeats: the planner moves the executors of the machine. A false alarm starts executors twice for a while.
AGENT_LOST_SECONDS = 5.0
#: A node that is gone is shown for this time.
NODE_FORGOTTEN_SECONDS = 60.0


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
