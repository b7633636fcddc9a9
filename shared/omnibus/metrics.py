"""Every metric: name, labels, meaning and what to do about it. Seconds and bytes, Prometheus style.

Labels are looked up once and kept, so that the hot path only adds. What somebody counts anyway is ``Told``: it is read
when Prometheus asks, and costs nothing until then; so is every gauge without labels, else each process would say that
it is 0. Labels have few values: models, request types, paths and options are
a plan's, apps are registered, components a model's, codes those of ``omnibus.errors``. Nothing that a client makes up,
and no id, is one.
"""

from functools import cache
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from omnibus.told import REGISTRY, Sizes, Told

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
#: From one token to the next.
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
#: Seconds of work for a second of sound: 1 is as fast as it is played.
_FACTORS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 5.0, 10.0)
#: Pairs of components that are told apart.
EDGES = 512
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class _Gateway:
    """What clients feel."""

    #: Requests by model and outcome (``ok`` or an error code). A rise of 5xx codes: see the stage in the logs.
    requests = Counter("omnibus_requests_total", "Requests by model and outcome.", ["model", "code"], registry=REGISTRY)
    #: Requests to apps by outcome. A rise of one app's 5xx codes: see its worker's lines in the gateway's log.
    apps = Counter("omnibus_app_requests_total", "Requests by app and outcome.", ["app", "code"], registry=REGISTRY)
    #: Requests per path. Compare with the planned rates; a drift means missing executors.
    paths = Counter("omnibus_path_requests_total", "Requests by path.", ["model", "type", "path"], registry=REGISTRY)
    #: What part of its type's requests the plan gives each path, of those that were used since it came.
    planned = Told("omnibus_path_planned_share", "Planned share of a path.", ["model", "type", "path"])
    #: Invocations that came, refused ones too, told once a second. Far above what is planned: plan again, or add GPUs.
    arrivals = Counter("omnibus_arrivals_total", "What came, by type.", ["model", "type"], registry=REGISTRY)
    #: Invocations by outcome: done, failed or refused. Refused ones found no room: more executors are needed.
    ended = Counter("omnibus_ended_total", "What ended, by type.", ["model", "type", "outcome"], registry=REGISTRY)
    #: Tokens and seconds of speech of what was done. More per request than the plan was made for: plan again.
    quantities = Counter(
        "omnibus_quantities_total", "Tokens and seconds.", ["model", "type", "quantity"], registry=REGISTRY
    )
    #: From request to first output. High with idle executors: look at the waterfall of one invocation.
    first = Histogram(
        "omnibus_first_output_seconds",
        "Time to first output.",
        ["model", "output"],
        registry=REGISTRY,
        buckets=_SECONDS,
    )
    #: From request to end.
    total = Histogram("omnibus_request_seconds", "Whole request.", ["model"], registry=REGISTRY, buckets=_SECONDS)
    #: Mean time between two tokens of an answer, as its client got them. High with idle executors: see its waterfall.
    tbt = Histogram("omnibus_tbt_seconds", "Mean time between tokens.", ["model"], registry=REGISTRY, buckets=_GAPS)
    #: The longest time between two pieces of text of an answer. Far above the mean: prompts hold up decoding; set
    #: OMNIBUS_EXECUTOR_TBT, or encode and prefill elsewhere.
    pause = Histogram("omnibus_tbt_longest_seconds", "Longest pause.", ["model"], registry=REGISTRY, buckets=_GAPS)
    #: Seconds from the request to the end of its sound, for each second of sound. Above 1 it cannot be played while it
    #: is made: more talkers or vocoders are needed.
    factor = Histogram(
        "omnibus_audio_realtime_factor", "Seconds per second of sound.", ["model"], registry=REGISTRY, buckets=_FACTORS
    )
    #: Times that a client who plays sound as it comes had none left, and the seconds of silence that this made.
    underruns = Counter("omnibus_audio_underruns_total", "Pauses in sound.", ["model"], registry=REGISTRY)
    silence = Counter("omnibus_audio_underrun_seconds_total", "Silence.", ["model"], registry=REGISTRY)
    #: Seconds of sound that clients got.
    sound = Counter("omnibus_audio_seconds_total", "Seconds of sound.", ["model"], registry=REGISTRY)
    #: Requests in flight at this gateway. At its limit clients get 429.
    inflight = Told("omnibus_gateway_inflight", "Requests in flight.")
    #: The limit, OMNIBUS_GATEWAY_MAX_INFLIGHT.
    limit = Told("omnibus_gateway_inflight_limit", "Requests that may be in flight.")
    #: Requests that were refused because there was no room: ``gateway`` is at its limit, ``executors`` were all busy.
    rejected = Counter(
        "omnibus_rejected_total", "Requests without room by reason.", ["model", "reason"], registry=REGISTRY
    )
    #: Executors that this gateway knows, by state: ``ok``, ``silent`` without heartbeats, ``stuck`` without progress.
    executors = Told("omnibus_executors", "Executors known here.", ["model", "option", "state"])
    #: Work that this gateway has sent to executors of an option and not seen finish.
    outstanding = Told("omnibus_outstanding_tokens", "Work on its way, in tokens.", ["model", "option"])
    #: Videos that clients have asked for and that are made here now.
    videos = Told("omnibus_gateway_videos", "Videos being made here.")
    #: Invocations that were sent to other executors. Rising: executors die or are full.
    moved = Counter("omnibus_moved_total", "Re-dispatches by reason.", ["reason"], registry=REGISTRY)
    #: Epoch of the plan in use; gateways that differ for long do not hear the store.
    epoch = Told("omnibus_plan_epoch", "Plan epoch in use.")
    #: When that plan was made, Unix seconds; its age is ``time()`` less this.
    created = Told("omnibus_plan_created_seconds", "When the plan in use was made.")

    @cache  # noqa: B019 one instance, few labels
    def outcome(self, model: str, code: str) -> Any:
        return self.requests.labels(model, code)

    @cache  # noqa: B019 registered apps alone
    def app(self, name: str, code: str) -> Any:
        return self.apps.labels(name, code)

    @cache  # noqa: B019
    def path(self, model: str, kind: str, path: str) -> Any:
        return self.paths.labels(model, kind, path)

    @cache  # noqa: B019
    def first_output(self, model: str, output: str) -> Any:
        return self.first.labels(model, output)

    @cache  # noqa: B019
    def seconds(self, model: str) -> Any:
        return self.total.labels(model)


class _Executor:
    """What engines do."""

    #: Invocations in flight in this executor. At its credits it answers busy.
    inflight = Told("omnibus_executor_inflight", "Invocations in flight.")
    #: What it may have in flight, OMNIBUS_EXECUTOR_CREDITS.
    credits = Told("omnibus_executor_credits", "Invocations that may be in flight.")
    #: Always 1; says of this process which executor it is. Join on ``instance`` to get model and option.
    about = Gauge("omnibus_executor_info", "This executor.", ["executor", "model", "option", "node"], registry=REGISTRY)
    #: Invocations that were answered ``busy``, and those that could not be taken at all. Gateways try another one.
    refused = Counter("omnibus_executor_busy_answers_total", "Invocations refused.", registry=REGISTRY)
    #: From taking a job until its inputs were there. High: look at the stage before, or at transfers.
    inputs = Histogram(
        "omnibus_job_input_seconds",
        "Job from taken to inputs there.",
        ["component"],
        registry=REGISTRY,
        buckets=_SECONDS,
    )
    #: From inputs to the first output, waiting for a turn included. High with a long queue: more replicas.
    first = Histogram(
        "omnibus_job_first_seconds",
        "Job from inputs to first output.",
        ["component"],
        registry=REGISTRY,
        buckets=_SECONDS,
    )
    #: Time from taking a job to its end, waiting for inputs included.
    job = Histogram("omnibus_job_seconds", "Job from taken to end.", ["component"], registry=REGISTRY, buckets=_SECONDS)
    #: Jobs by outcome.
    jobs = Counter("omnibus_jobs_total", "Jobs by outcome.", ["component", "code"], registry=REGISTRY)
    #: Seconds that the engine has computed. Rises by nearly a second each second: it is at its limit.
    busy = Gauge("omnibus_executor_busy_seconds", "Seconds computed.", ["component"], registry=REGISTRY)

    @cache  # noqa: B019
    def seconds(self, component: str) -> tuple[Any, Any, Any]:
        """Until inputs were there, until the first output, and until the end."""
        return self.inputs.labels(component), self.first.labels(component), self.job.labels(component)

    def finished(self, component: str, taken: float, ready: float, first: float, end: float) -> None:
        """A job was done; times in Unix seconds. A stream may begin before its last input has come."""
        inputs, firsts, whole = self.seconds(component)
        inputs.observe(ready - taken)
        firsts.observe(max(0.0, first - ready))
        whole.observe(end - taken)
        self.done(component, "ok").inc()

    @cache  # noqa: B019
    def done(self, component: str, code: str) -> Any:
        return self.jobs.labels(component, code)


class _Engine:
    """What runners say of themselves in ``stats``; a number that an engine does not know is left out.

    Engines of vLLM also tell all that vLLM does, by its names: ``vllm:kv_cache_usage_perc`` and others.
    """

    #: Jobs, or items of an encoder, that wait for a turn. Long for long: more replicas of the option are needed.
    waiting = Told("omnibus_engine_waiting", "Waiting for a turn.", ["component"])
    #: Sequences that are computed together at most, and now. All in use: the others wait.
    slots = Told("omnibus_engine_slots", "Sequences at once.", ["component"])
    used = Told("omnibus_engine_slots_used", "Sequences now.", ["component"])
    tokens = Told("omnibus_engine_tokens_total", "Tokens made.", ["component"])
    #: Times that the engine of a runner died and was started again.
    restarts = Told("omnibus_engine_restarts_total", "Engines started again.", ["component"])
    #: What is computed together, by its size. All small under load: look at what holds up the stage before.
    batches = Sizes("omnibus_batch_size", "Sizes of batches.", "component", _SIZES)


class _Transfer:
    """Tensors on the way from one component to the next, counted by who sends them. ``gateway`` sends media."""

    #: Bytes that were written for another process.
    bytes = Counter("omnibus_transfer_bytes_total", "Bytes sent.", ["source", "target"], registry=REGISTRY)
    #: Seconds that this took, waiting for room in the arena included. High per byte: the arena is full.
    seconds = Counter("omnibus_transfer_seconds_total", "Seconds of sending.", ["source", "target"], registry=REGISTRY)
    #: How many tensors, or rows of growing ones, that were.
    pieces = Counter("omnibus_transfers_total", "Tensors sent.", ["source", "target"], registry=REGISTRY)

    @cache  # noqa: B019
    def edge(self, source: str, target: str) -> tuple[Any, Any, Any]:
        """Bytes, seconds and pieces."""
        # Who writes to the bus by hand may name components as he likes.
        labels = (source, target) if self.edge.cache_info().currsize < EDGES else ("other", "other")
        return self.bytes.labels(*labels), self.seconds.labels(*labels), self.pieces.labels(*labels)

    def count(self, source: str, target: str, size: int, seconds: float, pieces: int = 1) -> None:
        added = size, seconds, pieces
        for counter, value in zip(self.edge(source, target), added, strict=True):
            counter.inc(value)


class _Encoder:
    """What encoders need not compute again."""

    #: Media items by what became of them: ``hits`` were kept, ``coalesced`` waited for an equal one, ``misses`` were
    #: computed; ``evicted`` left for newer ones. Many of the latter beside misses: raise OMNIBUS_EXECUTOR_CACHE_MIB.
    results = Counter("omnibus_encoder_results_total", "Media items.", ["component", "how"], registry=REGISTRY)
    #: Bytes of embeddings that are kept, at most OMNIBUS_EXECUTOR_CACHE_MIB.
    held = Gauge("omnibus_encoder_cache_bytes", "Bytes of kept embeddings.", ["component"], registry=REGISTRY)

    @cache  # noqa: B019
    def result(self, component: str, how: str) -> Any:
        return self.results.labels(component, how)

    @cache  # noqa: B019
    def kept(self, component: str) -> Any:
        return self.held.labels(component)


class _Arena:
    """What the node's shared memory holds; read from the sidecar's ledger."""

    #: Bytes given out. Near the arena's size: raise OMNIBUS_SIDECAR_ARENA_MIB.
    used = Told("omnibus_arena_used_bytes", "Bytes given out.")
    #: Most bytes that were given out at once.
    peak = Told("omnibus_arena_peak_bytes", "Most bytes given out.")
    #: Size of the arena.
    size = Told("omnibus_arena_size_bytes", "Size of the arena.")
    #: The largest free piece. Far below what is free: tensors of very different size; a larger arena helps.
    hole = Told("omnibus_arena_largest_hole_bytes", "Largest free piece.")
    #: Leases. Must return to zero when no request is in flight; else a holder leaks.
    leases = Told("omnibus_arena_leases", "Blocks given out.")
    #: Allocations that wait for room, and those that got none in time.
    waiting = Told("omnibus_arena_waiting", "Allocations that wait.")
    refused = Told("omnibus_arena_refused_total", "Allocations without room.")
    #: Blocks that were freed by their deadline. Any at all: somebody did not release.
    expired = Told("omnibus_arena_expired", "Blocks freed by deadline.")
    granted = Told("omnibus_arena_granted_total", "Blocks given out so far.")
    #: Blocks that were freed, by why.
    freed = Told("omnibus_arena_freed_total", "Blocks freed by reason.", ["reason"])
    #: Processes of this node that are connected, and those that were cut off for breaking the protocol.
    clients = Told("omnibus_arena_clients", "Connected processes.")
    dropped = Told("omnibus_arena_dropped_clients_total", "Processes cut off.")


class _Planner:
    """What the planner wants, and what there is."""

    #: Epoch of the plan that is current in the store, and when it was made, Unix seconds.
    epoch = Told("omnibus_planner_epoch", "Epoch of the current plan.")
    created = Told("omnibus_planner_plan_created_seconds", "When the current plan was made.")
    #: Plans that this planner made current. Many an hour: raise OMNIBUS_PLANNER_MARGIN or _COOLDOWN.
    swaps = Counter("omnibus_planner_plans_total", "Plans that became current.", registry=REGISTRY)
    #: Seconds that a plan has been waiting for its executors to start; 0: none waits.
    staged = Told("omnibus_planner_staged_age_seconds", "Age of the staged plan.")
    #: 1 while something that is wanted cannot be done: `omnibus plan show` says what.
    problems = Told("omnibus_planner_problems", "Whether changes are put off.")
    #: 1 while an operator has pinned an epoch: what is wanted waits for `omnibus plan resume`.
    pinned = Told("omnibus_planner_pinned", "Whether an epoch is pinned.")
    #: Executors that the current plan asks for, and those of them that say that they are ready.
    wanted = Told("omnibus_planner_executors_wanted", "Executors asked for.", ["model", "option"])
    ready = Told("omnibus_planner_executors_ready", "Executors ready.", ["model", "option"])
    #: Time to plan.
    solve = Histogram("omnibus_planner_solve_seconds", "Time to plan.", registry=REGISTRY, buckets=_SECONDS)


class _Streams:
    """JetStream, as the planner sees it every few seconds."""

    messages = Told("omnibus_stream_messages", "Messages kept.", ["stream"])
    #: Bytes kept, and the most that are. At the limit the oldest leave before their time: OMNIBUS_BUS_RECORD_BYTES.
    bytes = Told("omnibus_stream_bytes", "Bytes kept.", ["stream"])
    limit = Told("omnibus_stream_limit_bytes", "Bytes that may be kept.", ["stream"])
    #: Messages that came in all.
    last = Told("omnibus_stream_published_total", "Messages that came.", ["stream"])
    #: Messages that a durable consumer has still to get, and those that it got and has not acknowledged.
    pending = Told("omnibus_stream_consumer_pending", "Messages to come.", ["stream", "consumer"])
    unacknowledged = Told("omnibus_stream_consumer_unacknowledged", "Not acknowledged.", ["stream", "consumer"])


class _Process:
    """Every service."""

    #: Whether the connection to NATS is up, and how often it came back. What was under way then ran again.
    bus = Told("omnibus_bus_connected", "Whether NATS is there.")
    reconnects = Told("omnibus_bus_reconnects_total", "Times that the connection came back.")
    #: Messages and bytes to and from NATS.
    messages = Told("omnibus_bus_messages_total", "Messages.", ["direction"])
    bytes = Told("omnibus_bus_bytes_total", "Bytes.", ["direction"])
    #: 1 once the service has started and until it drains.
    ready = Gauge("omnibus_ready", "Whether this service is ready.", ["service"], registry=REGISTRY)
    #: Always 1; the version of this process.
    build = Gauge("omnibus_build_info", "This build.", ["service", "version"], registry=REGISTRY)


GATEWAY = _Gateway()
EXECUTOR = _Executor()
ENGINE = _Engine()
ENCODER = _Encoder()
TRANSFER = _Transfer()
ARENA = _Arena()
PLANNER = _Planner()
STREAMS = _Streams()
PROCESS = _Process()


def exposition() -> bytes:
    """All metrics of this process in the Prometheus text format."""
    return generate_latest(REGISTRY)
