"""Metrics of planners: plans, and the streams that they monitor."""

from prometheus_client import Counter, Histogram

from omnibus.metrics.collectors import LATENCY_BUCKETS_SECONDS, REGISTRY, CallbackMetric


class _Planner:
    """Metrics of the planner: the planned state and the actual one."""

    #: Epoch of the current plan in the store, and its creation time in Unix seconds.
    epoch = CallbackMetric("omnibus_planner_epoch", "Epoch of the current plan.")
    created = CallbackMetric("omnibus_planner_plan_created_seconds", "When the current plan was made.")
    #: Plans that this planner made current. If there are many per hour, raise OMNIBUS_PLANNER_MARGIN or _COOLDOWN.
    swaps = Counter("omnibus_planner_plans_total", "Plans that became current.", registry=REGISTRY)
    #: Seconds for which a plan has waited for its executors to start; 0 without such a plan.
    staged = CallbackMetric("omnibus_planner_staged_age_seconds", "Age of the staged plan.")
    #: 1 while a change cannot be made. `omnibus plan show` prints the reason.
    problems = CallbackMetric("omnibus_planner_problems", "Whether changes are put off.")
    #: 1 while an operator has pinned an epoch: changes wait for `omnibus plan resume`.
    pinned = CallbackMetric("omnibus_planner_pinned", "Whether an epoch is pinned.")
    #: Executors that the current plan requires, and those of them that report ready.
    wanted = CallbackMetric("omnibus_planner_executors_wanted", "Executors in the plan.", ["model", "option"])
    ready = CallbackMetric("omnibus_planner_executors_ready", "Executors ready.", ["model", "option"])
    #: Executors for which no machine of `omnibus node` has room. Add a machine, or end a drain.
    no_room = CallbackMetric("omnibus_planner_executors_no_room", "Executors without room.", ["model", "option"])
    #: 1 for the state of each model's candidate. `omnibus canary status` prints the reason.
    candidates = CallbackMetric("omnibus_planner_candidates", "Candidates by state.", ["model", "state"])
    #: Time to plan.
    solve = Histogram(
        "omnibus_planner_solve_seconds", "Time to plan.", registry=REGISTRY, buckets=LATENCY_BUCKETS_SECONDS
    )


class _Streams:
    """Metrics of JetStream, which the planner reads every few seconds."""

    messages = CallbackMetric("omnibus_stream_messages", "Messages stored.", ["stream"])
    #: Stored bytes, and their limit. At the limit, the oldest messages are removed early: OMNIBUS_BUS_RECORD_BYTES.
    bytes = CallbackMetric("omnibus_stream_bytes", "Bytes stored.", ["stream"])
    limit = CallbackMetric("omnibus_stream_limit_bytes", "Bytes that may be stored.", ["stream"])
    #: Total number of received messages.
    last = CallbackMetric("omnibus_stream_published_total", "Messages received.", ["stream"])
    #: Messages that a durable consumer has not received yet, and those that it has not acknowledged.
    pending = CallbackMetric("omnibus_stream_consumer_pending", "Messages pending.", ["stream", "consumer"])
    unacknowledged = CallbackMetric(
        "omnibus_stream_consumer_unacknowledged", "Not acknowledged.", ["stream", "consumer"]
    )


PLANNER = _Planner()
STREAMS = _Streams()
