"""Steps that lead from the running workloads to the wanted ones. No I/O."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from omnibus.cluster.desired import Kind, Wanted
from services.planner.reconcile.backend import Running


class Start(NamedTuple):
    wanted: Wanted


class Scale(NamedTuple):
    running: Running
    wanted: Wanted


class Change(NamedTuple):
    running: Running
    wanted: Wanted


class Stop(NamedTuple):
    running: Running


Step = Start | Scale | Change | Stop


def steps(wanted: Mapping[Kind, Wanted], running: Sequence[Running], mark: Callable[[Wanted], str]) -> list[Step]:
    """The fewest starts and stops that lead from ``running`` to ``wanted``: equal executors go on running.

    What adds executors comes before what takes some away. Of two workloads of one kind the first by name stays.
    """
    more, fewer = list[Step](), list[Step]()
    there: dict[Kind, Running] = {}
    for each in sorted(running):
        if each.kind not in wanted or each.kind in there:
            fewer.append(Stop(each))
        else:
            there[each.kind] = each
    for kind, asked in wanted.items():
        known = there.get(kind)
        if known is None:
            more.append(Start(asked))
        elif known.mark != mark(asked):
            more.append(Change(known, asked))
        elif (known.replicas, known.epoch) != (asked.replicas, asked.epoch):
            (more if known.replicas <= asked.replicas else fewer).append(Scale(known, asked))
    return more + fewer
