"""Metrics of executors: jobs, engines, and the encoders' cache of results."""

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
