"""Runs the executors of plans, if the planner starts and stops executors.

Under ``omnibus up`` it does not: processes follow the store themselves. In a cluster each kind of executor is a
separate workload, and the reconciler creates, scales and deletes it.
"""

from omnibus.errors import BadRequest
from omnibus.settings import KubernetesSettings, PlannerSettings, read_settings
from omnibus_planner.reconcile.backend import (
    Backend,
    RunningWorkload,
    ScaleWorkload,
    StartWorkload,
    Step,
    StopWorkload,
    diff_workloads,
)
from omnibus_planner.reconcile.kube_backend import KubernetesBackend
from omnibus_planner.reconcile.reconciler import Reconciler

__all__ = [
    "Backend",
    "KubernetesBackend",
    "Reconciler",
    "RunningWorkload",
    "ScaleWorkload",
    "StartWorkload",
    "Step",
    "StopWorkload",
    "create_backend",
    "diff_workloads",
]


def create_backend(settings: PlannerSettings) -> Backend | None:
    """Return the backend that starts and stops executors; None if they follow the store themselves.

    Raises ``BadRequest``.
    """
    if not settings.reconcile:
        return None
    if settings.reconcile != "kubernetes":
        raise BadRequest(f"OMNIBUS_PLANNER_RECONCILE={settings.reconcile!r}: there is 'kubernetes', or leave it empty")
    return KubernetesBackend(read_settings(KubernetesSettings))
