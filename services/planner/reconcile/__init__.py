"""Lets run what the plans ask for, where the planner is who starts and stops executors.

Under ``omnibus up`` it is not: there processes follow the store by themselves. In a cluster each kind of executor
is a workload of its own, and the reconciler creates, scales and deletes it.
"""

from omnibus.errors import BadRequest
from omnibus.settings import KubernetesSettings, PlannerSettings, read_settings
from services.planner.reconcile.backend import Backend, RunningWorkload
from services.planner.reconcile.diff import ScaleWorkload, StartWorkload, Step, StopWorkload, diff_workloads
from services.planner.reconcile.kube_backend import KubernetesBackend
from services.planner.reconcile.reconciler import Reconciler

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
    """Return what starts and stops executors; None when they follow the store by themselves. Raises ``BadRequest``."""
    if not settings.reconcile:
        return None
    if settings.reconcile != "kubernetes":
        raise BadRequest(f"OMNIBUS_PLANNER_RECONCILE={settings.reconcile!r}: there is 'kubernetes', or leave it empty")
    return KubernetesBackend(read_settings(KubernetesSettings))
