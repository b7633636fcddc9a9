"""Metrics of planners: plans, and the streams that they monitor."""

from prometheus_client import Counter, Histogram

from omnibus.metrics.buckets import LATENCY_BUCKETS_SECONDS
from omnibus.metrics.collectors import REGISTRY, CallbackMetric


class _Planner:
    """Metrics of the planner: the planned state and the actual one."""

    #: Epoch of the plan that is current in the store, and when it was made, Unix seconds.
    epoch = CallbackMetric("omnibus_planner_epoch", "Epoch of the current plan.")
    created = CallbackMetric("omnibus_planner_plan_created_seconds", "When the current plan was made.")
    #: Plans that this planner made current. Many an hour: raise OMNIBUS_PLANNER_MARGIN or _COOLDOWN.
    swaps = Counter("omnibus_planner_plans_total", "Plans that became current.", registry=REGISTRY)
    #: Seconds that a plan has been waiting for its executors to start; 0: none waits.
    staged = CallbackMetric("omnibus_planner_staged_age_seconds", "Age of the staged plan.")
    #: 1 while something that is wanted cannot be done: `omnibus plan show` says what.
    problems = CallbackMetric("omnibus_planner_problems", "Whether changes are put off.")
    #: 1 while an operator has pinned an epoch: what is wanted waits for `omnibus plan resume`.
    pinned = CallbackMetric("omnibus_planner_pinned", "Whether an epoch is pinned.")
    #: Executors that the current plan asks for, and those of them that say that they are ready.
    wanted = CallbackMetric("omnibus_planner_executors_wanted", "Executors in the plan.", ["model", "option"])
    ready = CallbackMetric("omnibus_planner_executors_ready", "Executors ready.", ["model", "option"])
    #: 1 for the state of each model's candidate: `omnibus canary status` says why it is in it.
    candidates = CallbackMetric("omnibus_planner_candidates", "Candidates by state.", ["model", "state"])
    #: Time to plan.
    solve = Histogram(
        "omnibus_planner_solve_seconds", "Time to plan.", registry=REGISTRY, buckets=LATENCY_BUCKETS_SECONDS
    )


class _Streams:
    """Metrics of JetStream, which the planner reads every few seconds."""

    messages = CallbackMetric("omnibus_stream_messages", "Messages stored.", ["stream"])
    #: Bytes kept, and the most that are. At the limit the oldest leave before their time: OMNIBUS_BUS_RECORD_BYTES.
    bytes = CallbackMetric("omnibus_stream_bytes", "Bytes stored.", ["stream"])
    limit = CallbackMetric("omnibus_stream_limit_bytes", "Bytes that may be stored.", ["stream"])
    #: Messages that came in all.
    last = CallbackMetric("omnibus_stream_published_total", "Messages received.", ["stream"])
    #: Messages that a durable consumer has still to get, and those that it got and has not acknowledged.
    pending = CallbackMetric("omnibus_stream_consumer_pending", "Messages pending.", ["stream", "consumer"])
    unacknowledged = CallbackMetric(
        "omnibus_stream_consumer_unacknowledged", "Not acknowledged.", ["stream", "consumer"]
    )


PLANNER = _Planner()
STREAMS = _Streams()
