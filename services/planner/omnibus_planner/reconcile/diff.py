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
    wanted: Mapping[ExecutorKind, DesiredExecutors],
    running: Sequence[RunningWorkload],
    mark: Callable[[DesiredExecutors], str],
) -> list[Step]:
    """Return the fewest starts and stops from ``running`` to ``wanted``: equal executors keep running.

    Steps that add executors come before those that remove some. Of two workloads of one kind the first by name stays.
    """
    more, fewer = list[Step](), list[Step]()
    there: dict[ExecutorKind, RunningWorkload] = {}
    for each in sorted(running):
        if each.kind not in wanted or each.kind in there:
            fewer.append(StopWorkload(each))
        else:
            there[each.kind] = each
    for kind, asked in wanted.items():
        known = there.get(kind)
        if known is None:
            more.append(StartWorkload(asked))
        elif known.mark != mark(asked):
            more.append(ReplaceWorkload(known, asked))
        elif (known.replicas, known.epoch) != (asked.replicas, asked.epoch):
            (more if known.replicas <= asked.replicas else fewer).append(ScaleWorkload(known, asked))
    return more + fewer
