"""Intervals of reports on the bus, and limits of silence, in seconds.

The page docs/reliability.md lists who decides what after which silence. A limit is longer if a false alarm costs more:
heartbeats are late on a busy machine.
"""

EXECUTOR_HEARTBEAT_SECONDS = 0.5
#: Of a gateway that follows a plan. It reports as well when its plan changes, and on census.
GATEWAY_HEARTBEAT_SECONDS = 2.0
#: Of a gateway that has requests in flight.
LOAD_REPORT_SECONDS = 1.0
#: Of a sidecar that other sidecars pull from.
NODE_HEARTBEAT_SECONDS = 1.0
#: Census by ``omnibus top``.
CENSUS_INTERVAL_SECONDS = 5.0

#: A heartbeat is late: the executor is probed, again and again. A false alarm costs one empty message.
EXECUTOR_PROBE_SECONDS = 0.75
#: Two heartbeats: it gets no new work. A false alarm makes others do more.
EXECUTOR_SUSPECT_SECONDS = 1.2
#: Six heartbeats: it does not count as ready or present. A false alarm makes a rollout wait.
EXECUTOR_ABSENT_SECONDS = 3.0
#: Eight heartbeats: its invocations move. A false alarm costs what they have computed.
EXECUTOR_LOST_SECONDS = 4.0
#: The same while no other executor can take the work, and while it may still get some: a false alarm fails requests.
EXECUTOR_LAST_RESORT_SECONDS = 15.0
#: Three heartbeats: its part of the tenants' limits goes to the other gateways, and who lacks a file does not wait for
#: its answer. A false alarm exceeds the limits.
GATEWAY_ABSENT_SECONDS = 7.0
#: Three censuses: a gateway is not shown any more.
GATEWAY_FORGOTTEN_SECONDS = 15.0
#: Three reports: what a gateway had in flight does not count any more.
LOAD_ABSENT_SECONDS = 3.0
#: Three heartbeats: the node is shown as gone. A false alarm costs nothing: whether a node can be reached is seen when
#: something is pulled from it.
NODE_ABSENT_SECONDS = 3.5
#: A node that is gone is shown for so long.
NODE_FORGOTTEN_SECONDS = 60.0
