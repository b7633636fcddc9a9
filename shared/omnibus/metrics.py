"""Every metric: name, labels, meaning and what to do about it. Seconds and bytes, Prometheus style.

Labels are looked up once and kept, so that the hot path only adds.
"""

from functools import cache
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

REGISTRY = CollectorRegistry()

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class _Gateway:
    """What clients feel."""

    #: Requests by model and outcome (``ok`` or an error code). A rise of 5xx codes: see the stage in the logs.
    requests = Counter("omnibus_requests_total", "Requests by model and outcome.", ["model", "code"], registry=REGISTRY)
    #: Requests to apps by outcome. A rise of one app's 5xx codes: see its worker's lines in the gateway's log.
    apps = Counter("omnibus_app_requests_total", "Requests by app and outcome.", ["app", "code"], registry=REGISTRY)
    #: Requests per path. Compare with the planned rates; a drift means missing executors.
    paths = Counter("omnibus_path_requests_total", "Requests by path.", ["model", "type", "path"], registry=REGISTRY)
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
    #: Requests in flight at this gateway. At its limit clients get 429.
    inflight = Gauge("omnibus_gateway_inflight", "Requests in flight.", registry=REGISTRY)
    #: Invocations that were sent to other executors. Rising: executors die or are full.
    moved = Counter("omnibus_moved_total", "Re-dispatches by reason.", ["reason"], registry=REGISTRY)
    #: Epoch of the plan in use; gateways that differ for long do not hear the store.
    epoch = Gauge("omnibus_plan_epoch", "Plan epoch in use.", registry=REGISTRY)

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
    inflight = Gauge("omnibus_executor_inflight", "Invocations in flight.", registry=REGISTRY)
    #: Time from taking a job to its end, waiting for inputs included.
    job = Histogram("omnibus_job_seconds", "Job from taken to end.", ["component"], registry=REGISTRY, buckets=_SECONDS)
    #: Jobs by outcome.
    jobs = Counter("omnibus_jobs_total", "Jobs by outcome.", ["component", "code"], registry=REGISTRY)
    #: Seconds that the engine has computed. Rises by nearly a second each second: it is at its limit.
    busy = Gauge("omnibus_executor_busy_seconds", "Seconds computed.", ["component"], registry=REGISTRY)

    @cache  # noqa: B019
    def seconds(self, component: str) -> Any:
        return self.job.labels(component)

    @cache  # noqa: B019
    def done(self, component: str, code: str) -> Any:
        return self.jobs.labels(component, code)


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
    """What the node's shared memory holds; set from the sidecar's ledger."""

    #: Bytes given out. Near the arena's size: raise OMNIBUS_SIDECAR_ARENA_MIB.
    used = Gauge("omnibus_arena_used_bytes", "Bytes given out.", registry=REGISTRY)
    #: Size of the arena.
    size = Gauge("omnibus_arena_size_bytes", "Size of the arena.", registry=REGISTRY)
    #: Leases. Must return to zero when no request is in flight; else a holder leaks.
    leases = Gauge("omnibus_arena_leases", "Blocks given out.", registry=REGISTRY)
    #: Blocks that were freed by their deadline. Any at all: somebody did not release.
    expired = Gauge("omnibus_arena_expired", "Blocks freed by deadline.", registry=REGISTRY)


GATEWAY = _Gateway()
EXECUTOR = _Executor()
ENCODER = _Encoder()
ARENA = _Arena()


def exposition() -> bytes:
    """All metrics of this process in the Prometheus text format."""
    return generate_latest(REGISTRY)
