"""Interface of a reconciler's backend: a place where executors run.

Steps that lead from the running workloads to the required ones. No I/O.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from omnibus.cluster.presence import DesiredExecutors, ExecutorKind
from omnibus.errors import OmnibusError


class RunningWorkload(NamedTuple):
    """A workload.

    ``name`` is its name in the backend. ``mark`` changes with its configuration. ``epoch`` is that of the newest plan
    that needs it.
    """

    name: str
    kind: ExecutorKind
    replicas: int
    mark: str
    epoch: int = 0


class Backend(Protocol):
    """A backend. Each call has a time limit, and raises a typed error if it failed."""

    #: Seconds between two checks of the workloads when nothing changes.
    resync: float

    @property
    def is_leader(self) -> bool:
        """True if this planner may change anything: of several, one does."""

    @property
    def leadership_error(self) -> OmnibusError | None:
        """Error that hides which planner leads; None if there is none."""

    async def run_leader_election(self, tell: Callable[[], None]) -> None:
        """Take part in the election until cancelled.

        ``tell`` is called when ``is_leader`` or the error changes.
        """

    def workload_hash(self, executors: DesiredExecutors) -> str:
        """Return the value of ``RunningWorkload.mark`` for these executors."""

    async def list_workloads(self) -> list[RunningWorkload]:
        """Return all workloads of this Omnibus."""

    async def start(self, executors: DesiredExecutors) -> None:
        """Create the workload."""

    async def scale(self, running: RunningWorkload, executors: DesiredExecutors) -> None:
        """Scale to the ``executors`` replicas, for their plan, without replacing any."""

    async def replace_executors(self, running: RunningWorkload, executors: DesiredExecutors) -> None:
        """Update the workload, whose executors are then replaced one by one."""

    async def stop(self, running: RunningWorkload) -> None:
        """Delete the workload; accepted requests may finish."""


class StartWorkload(NamedTuple):
    wanted: DesiredExecutors


class ScaleWorkload(NamedTuple):
    running: RunningWorkload
    wanted: DesiredExecutors


class ReplaceWorkload(NamedTuple):
    running: RunningWorkload
    wanted: DesiredExecutors


class StopWorkload(NamedTuple):
    running: RunningWorkload


Step = StartWorkload | ScaleWorkload | ReplaceWorkload | StopWorkload


def diff_workloads(
    targets: Mapping[ExecutorKind, DesiredExecutors],
    running: Sequence[RunningWorkload],
    mark: Callable[[DesiredExecutors], str],
) -> list[Step]:
    """Return the fewest starts and stops from ``running`` to ``targets``: equal executors keep running.

    Steps that add executors come before those that remove some. Of two workloads of one kind the first by name stays.
    """
    more, fewer = list[Step](), list[Step]()
    there: dict[ExecutorKind, RunningWorkload] = {}
    for each in sorted(running):
        if each.kind not in targets or each.kind in there:
            fewer.append(StopWorkload(each))
        else:
            there[each.kind] = each
    for kind, executors in targets.items():
        workload = there.get(kind)
        if workload is None:
            more.append(StartWorkload(executors))
        elif workload.mark != mark(executors):
            more.append(ReplaceWorkload(workload, executors))
        elif (workload.replicas, workload.epoch) != (executors.replicas, executors.epoch):
            (more if workload.replicas <= executors.replicas else fewer).append(ScaleWorkload(workload, executors))
    return more + fewer
