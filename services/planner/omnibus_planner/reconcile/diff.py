"""Steps that lead from the running workloads to the required ones. No I/O."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from omnibus.cluster.desired import DesiredExecutors, ExecutorKind
from omnibus_planner.reconcile.backend import RunningWorkload


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
