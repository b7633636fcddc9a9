"""Metrics of executors: jobs, engines, the encoders' cache of results, transfers and shared memory."""

from functools import cache
from typing import Any

from prometheus_client import Counter, Gauge

from omnibus.metrics.collectors import (
    LATENCY_BUCKETS_SECONDS,
    REGISTRY,
    CallbackMetric,
    Distribution,
    SizeHistogram,
    Tally,
    TallyCounter,
    TallyHistogram,
)

_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class _ExecutorMetrics:
    """Metrics of an executor and its jobs."""

    #: Invocations in flight in this executor. With all credits in use, it answers busy.
    inflight = CallbackMetric("omnibus_executor_inflight", "Invocations in flight.")
    #: Limit of invocations in flight, OMNIBUS_EXECUTOR_CREDITS.
    credits = CallbackMetric("omnibus_executor_credits", "Invocations that may be in flight.")
    #: Always 1. The labels describe the executor of this process. Join on ``instance`` to get model and option.
    about = Gauge("omnibus_executor_info", "This executor.", ["executor", "model", "option", "node"], registry=REGISTRY)
    #: Invocations answered with ``busy``, and those that could not be accepted at all. Gateways try another executor.
    refused = Counter("omnibus_executor_busy_answers_total", "Invocations refused.", registry=REGISTRY)
    #: From the start of a job until its inputs arrived. If high, check the stage before it, or transfers.
    inputs = TallyHistogram(
        "omnibus_job_input_seconds",
        "Job from taken to inputs there.",
        ["component"],
        buckets=LATENCY_BUCKETS_SECONDS,
    )
    #: From inputs to the first output, including the wait in the queue. If high with a long queue, add replicas.
    first = TallyHistogram(
        "omnibus_job_first_seconds",
        "Job from inputs to first output.",
        ["component"],
        buckets=LATENCY_BUCKETS_SECONDS,
    )
    #: Time from the start of a job to its end, including the wait for inputs.
    job = TallyHistogram(
        "omnibus_job_seconds",
        "Job from taken to end.",
        ["component"],
        buckets=LATENCY_BUCKETS_SECONDS,
    )
    #: Jobs by outcome.
    jobs = TallyCounter("omnibus_jobs_total", "Jobs by outcome.", ["component", "code"])
    #: Seconds that the engine has computed. If it rises by nearly a second each second, the engine is at its limit.
    busy = Gauge("omnibus_executor_busy_seconds", "Seconds computed.", ["component"], registry=REGISTRY)
    #: Joules of the device charged to jobs, by component; none without a meter. Idle time is not included.
    energy = Counter("omnibus_energy_joules_total", "Joules charged to jobs.", ["stage"], registry=REGISTRY)

    @cache  # noqa: B019
    def job_histograms(self, component: str) -> tuple[Distribution, Distribution, Distribution]:
        """Return the histograms of ``component``: time until inputs arrived, to first output, and to the end."""
        return self.inputs.labels(component), self.first.labels(component), self.job.labels(component)

    def observe_finished(self, component: str, start: float, ready: float, first: float, end: float) -> None:
        """Count a finished job. Times are in Unix seconds. A stream may begin before its last input arrives."""
        inputs, firsts, whole = self.job_histograms(component)
        inputs.observe(ready - start)
        firsts.observe(max(0.0, first - ready))
        whole.observe(end - start)
        self.job_counter(component, "ok").inc()

    @cache  # noqa: B019
    def job_counter(self, component: str, code: str) -> Tally:
        return self.jobs.labels(component, code)


class _Engine:
    """Metrics that runners report in ``stats``. Numbers that an engine does not report are left out.

    Engines of vLLM also export all metrics of vLLM, by vLLM's names: ``vllm:kv_cache_usage_perc`` and others.
    """

    #: Jobs, or items of an encoder, in the queue. If it is long for a while, add replicas of the option.
    waiting = CallbackMetric("omnibus_engine_waiting", "Waiting for a turn.", ["component"])
    #: Sequences computed at once, the limit and the present number. If all slots are in use, other sequences wait.
    slots = CallbackMetric("omnibus_engine_slots", "Sequences at once.", ["component"])
    used = CallbackMetric("omnibus_engine_slots_used", "Sequences now.", ["component"])
    tokens = CallbackMetric("omnibus_engine_tokens_total", "Tokens made.", ["component"])
    #: Restarts of a runner's engine after it died.
    restarts = CallbackMetric("omnibus_engine_restarts_total", "Engines started again.", ["component"])
    #: Batches by size. If all are small under load, check the stage before.
    batches = SizeHistogram("omnibus_batch_size", "Sizes of batches.", "component", _BATCH_SIZES)


class _Encoder:
    """Metrics of the encoders' cache of results."""

    #: Media items by outcome: ``hits`` were cached, ``coalesced`` waited for an equal one, ``misses`` were computed.
    #: ``evicted`` made room for newer ones. With many evicted and missed items, raise OMNIBUS_EXECUTOR_CACHE_MIB.
    results = Counter("omnibus_encoder_results_total", "Media items.", ["component", "how"], registry=REGISTRY)
    #: Bytes of cached embeddings, at most OMNIBUS_EXECUTOR_CACHE_MIB.
    held = Gauge("omnibus_encoder_cache_bytes", "Bytes of cached embeddings.", ["component"], registry=REGISTRY)

    @cache  # noqa: B019
    def result_counter(self, component: str, how: str) -> Any:
        return self.results.labels(component, how)

    @cache  # noqa: B019
    def cache_gauge(self, component: str) -> Any:
        return self.held.labels(component)


EXECUTOR = _ExecutorMetrics()
ENGINE = _Engine()
ENCODER = _Encoder()


#: Most pairs of components with their own labels.
MAX_EDGES = 512


class _Transfer:
    """Tensors sent from one component to the next, counted by the sender. ``gateway`` sends media."""

    #: Bytes written for another process.
    bytes = Counter("omnibus_transfer_bytes_total", "Bytes sent.", ["source", "target"], registry=REGISTRY)
    #: Seconds of these writes, including waits for space in the arena. If high per byte, the arena is full.
    seconds = Counter("omnibus_transfer_seconds_total", "Seconds of sending.", ["source", "target"], registry=REGISTRY)
    #: Number of these tensors, or of rows of growing ones.
    pieces = Counter("omnibus_transfers_total", "Tensors sent.", ["source", "target"], registry=REGISTRY)

    @cache  # noqa: B019
    def edge_counters(self, source: str, target: str) -> tuple[Any, Any, Any]:
        """Return the counters of bytes, seconds and pieces."""
        # A client that publishes on the bus itself can choose names of components.
        labels = (source, target) if self.edge_counters.cache_info().currsize < MAX_EDGES else ("other", "other")
        return self.bytes.labels(*labels), self.seconds.labels(*labels), self.pieces.labels(*labels)

    def count_transfer(self, source: str, target: str, size: int, seconds: float, pieces: int = 1) -> None:
        amounts = size, seconds, pieces
        for counter, value in zip(self.edge_counters(source, target), amounts, strict=True):
            counter.inc(value)


class _Arena:
    """Metrics of the node's shared memory, read from the sidecar's ledger."""

    #: Allocated bytes. If near the arena's size, raise OMNIBUS_SIDECAR_ARENA_MIB.
    used = CallbackMetric("omnibus_arena_used_bytes", "Bytes given out.")
    #: Bytes of empty blocks that processes keep for their next tensors. They are returned when idle, and before a
    #: tensor waits for space. Allocated bytes do not include them.
    spare = CallbackMetric("omnibus_arena_spare_bytes", "Bytes held for the next tensors.")
    #: Tensors that used such a block, and recalls of all of them for lack of space.
    spares_used = CallbackMetric("omnibus_arena_spares_used_total", "Tensors in blocks that were held ready.")
    spares_recalled = CallbackMetric("omnibus_arena_spares_recalled_total", "Recalls of blocks that were held ready.")
    #: Most bytes allocated at once, including blocks for next tensors.
    peak = CallbackMetric("omnibus_arena_peak_bytes", "Most bytes given out.")
    #: Size of the arena.
    size = CallbackMetric("omnibus_arena_size_bytes", "Size of the arena.")
    #: The largest free piece. If far below the free bytes, sizes of tensors differ much: use a larger arena.
    hole = CallbackMetric("omnibus_arena_largest_hole_bytes", "Largest free piece.")
    #: Leases. They must return to zero when no request is in flight, else a holder leaks.
    leases = CallbackMetric("omnibus_arena_leases", "Blocks given out.")
    #: Allocations that wait for space, and those that timed out.
    waiting = CallbackMetric("omnibus_arena_waiting", "Allocations that wait.")
    refused = CallbackMetric("omnibus_arena_refused_total", "Allocations without room.")
    #: Blocks freed by their deadline. If above 0, a process did not release them.
    expired = CallbackMetric("omnibus_arena_expired", "Blocks freed by deadline.")
    granted = CallbackMetric("omnibus_arena_granted_total", "Blocks given out so far.")
    #: Freed blocks by reason.
    freed = CallbackMetric("omnibus_arena_freed_total", "Blocks freed by reason.", ["reason"])
    #: Connected processes of this node, and those disconnected after a protocol error.
    clients = CallbackMetric("omnibus_arena_clients", "Connected processes.")
    dropped = CallbackMetric("omnibus_arena_dropped_clients_total", "Processes cut off.")


class _Nodes:
    """Metrics of tensors sent between nodes. The sidecar of the receiving node reports them."""

    #: Bytes pulled from each other node, and the seconds of these pulls. Few bytes per second mean a slow link.
    pulled = CallbackMetric("omnibus_node_pulled_bytes_total", "Bytes pulled from a node.", ["node"])
    seconds = CallbackMetric("omnibus_node_pull_seconds_total", "Seconds of pulling from a node.", ["node"])
    #: The part of those bytes that used UCX, and failed transfers over it, which TCP did instead.
    ucx = CallbackMetric("omnibus_node_ucx_bytes_total", "Bytes pulled from a node over UCX.", ["node"])
    ucx_failures = CallbackMetric("omnibus_node_ucx_failures_total", "Transfers over UCX that failed.", ["node"])
    #: Bytes that other nodes have pulled from this one.
    sent = CallbackMetric("omnibus_node_sent_bytes_total", "Bytes sent to other nodes.")
    #: Pulls that failed, by the code of the error.
    failures = CallbackMetric("omnibus_node_pull_failures_total", "Pulls that failed.", ["reason"])
    #: Closed connections. If above 0, a peer has another secret or version, or is not a node.
    refused = CallbackMetric("omnibus_node_refused_connections_total", "Connections cut off.", ["reason"])
    #: Bytes of the arena used by tensors of other nodes.
    mirrors = CallbackMetric("omnibus_node_mirror_bytes", "Bytes of tensors of other nodes.")
    #: 1 for a node that could not be reached at the last attempt.
    unreachable = CallbackMetric("omnibus_node_unreachable", "Nodes that cannot be reached.", ["node"])


TRANSFER = _Transfer()
NODES = _Nodes()
ARENA = _Arena()
