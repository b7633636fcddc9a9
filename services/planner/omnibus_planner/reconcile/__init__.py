"""Runs the executors of plans, if the planner starts and stops executors.

Under ``omnibus up`` it does not: processes follow the store themselves. In a cluster each kind of executor is a
separate workload, and the reconciler creates, scales and deletes it.
"""

from collections.abc import Callable

from omnibus.errors import BadRequest
from omnibus.settings import KubernetesSettings, PlannerSettings, read_settings
from omnibus_planner.reconcile.agent_backend import AgentBackend
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
from omnibus_planner.reconcile.machines import MachineSize, describe_change, machine_sizes, with_machines
from omnibus_planner.reconcile.reconciler import Reconciler

__all__ = [
    "AgentBackend",
    "Backend",
    "KubernetesBackend",
    "MachineSize",
    "Reconciler",
    "RunningWorkload",
    "ScaleWorkload",
    "StartWorkload",
    "Step",
    "StopWorkload",
    "create_backend",
    "describe_change",
    "diff_workloads",
    "machine_sizes",
    "with_machines",
]


def create_backend(settings: PlannerSettings, agents: Callable[[], AgentBackend] | None = None) -> Backend | None:
    """Return the backend that starts and stops executors; None if they follow the store themselves.

    ``agents`` makes that of machines with agents. Raises ``BadRequest``.
    """
    match settings.reconcile:
        case "":
            return None
        case "kubernetes":
            return KubernetesBackend(read_settings(KubernetesSettings))
        case "agents" if agents is not None:
            return agents()
    raise BadRequest(
        f"OMNIBUS_PLANNER_RECONCILE={settings.reconcile!r}: there is 'kubernetes' and 'agents', or leave it empty"
    )
