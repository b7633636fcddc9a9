"""Intervals of reports on the bus, and limits of silence, in seconds.

docs/reliability.md lists the decisions that follow from silence. A limit is longer if a false alarm costs more:
heartbeats are late on a busy machine.
"""

EXECUTOR_HEARTBEAT_SECONDS = 0.5
#: Heartbeat of a gateway that follows a plan. It also reports when its plan changes, and on census.
GATEWAY_HEARTBEAT_SECONDS = 2.0
#: Load report of a gateway that has requests in flight.
LOAD_REPORT_SECONDS = 1.0
#: Heartbeat of a sidecar that other sidecars pull from.
NODE_HEARTBEAT_SECONDS = 1.0
#: Census by ``omnibus top``.
CENSUS_INTERVAL_SECONDS = 5.0

#: A heartbeat is late: the executor is probed repeatedly. A false alarm costs one empty message.
EXECUTOR_PROBE_SECONDS = 0.75
#: Two heartbeats: it gets no new work. A false alarm gives other executors more work.
EXECUTOR_SUSPECT_SECONDS = 1.2
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
#: A node that is gone is shown for this time.
NODE_FORGOTTEN_SECONDS = 60.0
