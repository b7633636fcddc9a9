"""Metrics of admission: requests that wait for a turn, refused requests, and the usage of each tenant."""

from functools import cache
from typing import Any

from prometheus_client import Counter, Histogram

from omnibus.metrics.collectors import LATENCY_BUCKETS_SECONDS, REGISTRY, CallbackMetric

#: Most tenants with their own label. Operators register them, so they are few. Later ones are ``other``.
MAX_TENANTS = 256


class _Tenants:
    """Turns and limits of tenants. There are no values unless API keys are required.

    If several models share an executor, its requests count for each of them. Tenant "" is the operator, by the admin
    token.
    """

    #: Requests that wait for their turn. If many wait for long, find the tenant with most usage below, or add
    #: executors.
    waiting = CallbackMetric("omnibus_admission_waiting", "Requests that wait for their turn.", ["model"])
    #: Admitted requests. If few are admitted, many wait and executors are idle, raise OMNIBUS_GATEWAY_ADMIT.
    working = CallbackMetric("omnibus_admission_working", "Requests that have their turn.", ["model"])
    #: Seconds from the arrival of a request to its turn, its rejection, or the disconnect of its client. Requests that
    #: may wait until their deadline (videos) are not included. If high, a tenant exceeds its share, or all exceed the
    #: capacity.
    wait = Histogram(
        "omnibus_admission_wait_seconds",
        "Waited for a turn.",
        ["model"],
        registry=REGISTRY,
        buckets=LATENCY_BUCKETS_SECONDS,
    )
    #: GPU-seconds of finished requests. The rate is the number of GPUs in use; compare tenants by their weights.
    used = Counter("omnibus_tenant_gpu_seconds_total", "GPU-seconds used.", ["tenant"], registry=REGISTRY)
    #: Cost of finished requests, by the plan's prices, see docs/planner.md#prices. Compare it with budgets.
    cost = Counter(
        "omnibus_tenant_cost_total", "Money by the plan's prices.", ["tenant", "currency"], registry=REGISTRY
    )
    #: Rejected requests, by the reasons of ``omnibus_rejected_total`` from ``queue`` on. If it rises for one tenant,
    #: the tenant exceeds its keys or its share. If it rises for all, add executors.
    refused = Counter(
        "omnibus_tenant_refused_total", "Requests refused by reason.", ["tenant", "reason"], registry=REGISTRY
    )

    @cache  # noqa: B019 models of the plan alone
    def wait_histogram(self, model: str) -> Any:
        return self.wait.labels(model)

    @cache  # noqa: B019 registered tenants alone
    def gpu_seconds(self, tenant: str) -> Any:
        return self.used.labels(self.tenant_label(tenant))

    @cache  # noqa: B019 registered tenants, and currencies of plans
    def cost_counter(self, tenant: str, currency: str) -> Any:
        return self.cost.labels(self.tenant_label(tenant), currency)

    @cache  # noqa: B019
    def refusal_counter(self, tenant: str, reason: str) -> Any:
        return self.refused.labels(self.tenant_label(tenant), reason)

    @cache  # noqa: B019
    def tenant_label(self, tenant: str) -> str:
        """Return the label value for ``tenant``: its name, or ``other`` after the first ``MAX_TENANTS``."""
        # Keys are created and revoked while a gateway runs.
        return tenant if self.tenant_label.cache_info().currsize < MAX_TENANTS else "other"


TENANTS = _Tenants()
