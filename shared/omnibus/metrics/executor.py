"""Metrics of executors: jobs, engines, and the encoders' cache of results."""

from functools import cache
from typing import Any

from prometheus_client import Counter, Gauge

from omnibus.metrics.buckets import LATENCY_BUCKETS_SECONDS
from omnibus.metrics.collectors import REGISTRY, CallbackMetric, SizeHistogram
from omnibus.metrics.tallies import Distribution, Tally, TallyCounter, TallyHistogram

_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class _ExecutorMetrics:
    """Metrics of an executor and its jobs."""

    #: Invocations in flight in this executor. At its credits it answers busy.
    inflight = CallbackMetric("omnibus_executor_inflight", "Invocations in flight.")
    #: What it may have in flight, OMNIBUS_EXECUTOR_CREDITS.
    credits = CallbackMetric("omnibus_executor_credits", "Invocations that may be in flight.")
    #: Always 1; says of this process which executor it is. Join on ``instance`` to get model and option.
    about = Gauge("omnibus_executor_info", "This executor.", ["executor", "model", "option", "node"], registry=REGISTRY)
    #: Invocations that were answered ``busy``, and those that could not be taken at all. Gateways try another one.
    refused = Counter("omnibus_executor_busy_answers_total", "Invocations refused.", registry=REGISTRY)
    #: From taking a job until its inputs were there. High: look at the stage before, or at transfers.
    inputs = TallyHistogram(
        "omnibus_job_input_seconds",
        "Job from taken to inputs there.",
        ["component"],
        buckets=LATENCY_BUCKETS_SECONDS,
    )
    #: From inputs to the first output, waiting for a turn included. High with a long queue: more replicas.
    first = TallyHistogram(
        "omnibus_job_first_seconds",
        "Job from inputs to first output.",
        ["component"],
        buckets=LATENCY_BUCKETS_SECONDS,
    )
    #: Time from taking a job to its end, waiting for inputs included.
    job = TallyHistogram(
        "omnibus_job_seconds",
        "Job from taken to end.",
        ["component"],
        buckets=LATENCY_BUCKETS_SECONDS,
    )
    #: Jobs by outcome.
    jobs = TallyCounter("omnibus_jobs_total", "Jobs by outcome.", ["component", "code"])
    #: Seconds that the engine has computed. Rises by nearly a second each second: it is at its limit.
    busy = Gauge("omnibus_executor_busy_seconds", "Seconds computed.", ["component"], registry=REGISTRY)
    #: Joules of the device that jobs were charged, by component; none where there is no meter. Time without work is
    #: left out.
    energy = Counter("omnibus_energy_joules_total", "Joules charged to jobs.", ["stage"], registry=REGISTRY)

    @cache  # noqa: B019
    def job_histograms(self, component: str) -> tuple[Distribution, Distribution, Distribution]:
        """Return the histograms of ``component``: time until inputs arrived, to first output, and to the end."""
        return self.inputs.labels(component), self.first.labels(component), self.job.labels(component)

    def observe_finished(self, component: str, taken: float, ready: float, first: float, end: float) -> None:
        """Count a finished job. Times are in Unix seconds. A stream may begin before its last input arrives."""
        inputs, firsts, whole = self.job_histograms(component)
        inputs.observe(ready - taken)
        firsts.observe(max(0.0, first - ready))
        whole.observe(end - taken)
        self.job_counter(component, "ok").inc()

    @cache  # noqa: B019
    def job_counter(self, component: str, code: str) -> Tally:
        return self.jobs.labels(component, code)


class _Engine:
    """Metrics that runners report in ``stats``. Numbers that an engine does not report are left out.

    Engines of vLLM also export all metrics of vLLM, by vLLM's names: ``vllm:kv_cache_usage_perc`` and others.
    """

    #: Jobs, or items of an encoder, that wait for a turn. Long for long: more replicas of the option are needed.
    waiting = CallbackMetric("omnibus_engine_waiting", "Waiting for a turn.", ["component"])
    #: Sequences that are computed together at most, and now. All in use: the others wait.
    slots = CallbackMetric("omnibus_engine_slots", "Sequences at once.", ["component"])
    used = CallbackMetric("omnibus_engine_slots_used", "Sequences now.", ["component"])
    tokens = CallbackMetric("omnibus_engine_tokens_total", "Tokens made.", ["component"])
    #: Times that the engine of a runner died and was started again.
    restarts = CallbackMetric("omnibus_engine_restarts_total", "Engines started again.", ["component"])
    #: What is computed together, by its size. All small under load: look at what holds up the stage before.
    batches = SizeHistogram("omnibus_batch_size", "Sizes of batches.", "component", _BATCH_SIZES)


class _Encoder:
    """Metrics of the encoders' cache of results."""

    #: Media items by what became of them: ``hits`` were kept, ``coalesced`` waited for an equal one, ``misses`` were
    #: computed; ``evicted`` left for newer ones. Many of the latter beside misses: raise OMNIBUS_EXECUTOR_CACHE_MIB.
    results = Counter("omnibus_encoder_results_total", "Media items.", ["component", "how"], registry=REGISTRY)
    #: Bytes of embeddings that are kept, at most OMNIBUS_EXECUTOR_CACHE_MIB.
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
