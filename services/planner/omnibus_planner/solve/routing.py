"""Routing of requests over given replicas: as much headroom as possible, then the fewest arcs."""

from typing import Any

import numpy as np
from scipy import sparse

from omnibus.errors import DeadlineExceeded
from omnibus_planner.solve import highs
from omnibus_planner.solve.flow_matrix import FlowMatrix, ServedFlow
from omnibus_planner.solve.flow_network import Arc
from omnibus_planner.solve.highs import Deadline, Program, Vector
from omnibus_planner.solve.solution import Flow, decompose_flow

#: Most branches of the search for fewer arcs, and the most arcs for that search.
_MAX_BRANCHES, _MAX_MILP_ARCS = 2000, 48
#: Below this, an arc is as good as the best.
_SHORTFALL_TOLERANCE = 1e-9


def route_flows(
    frame: FlowMatrix,
    served: ServedFlow,
    supply: Vector,
    mix: tuple[float, ...],
    rate: float,
    deadline: Deadline | None,
) -> tuple[Flow, ...]:
    """Return paths with rates that add up to ``rate`` req/s.

    They are those of the highest rate that the replicas serve, scaled down in proportion. So the busiest replicas are
    as little busy as possible. Without a ``deadline``, there is no search for fewer arcs.
    """
    if served.rate <= 0 or rate <= 0:
        return ()
    flow = _fewest_arcs(frame, served, supply, mix, deadline) if deadline else served.flow
    return decompose_flow(frame.network, flow * (rate / served.rate), [share * rate for share in mix])


def _fewest_arcs(
    frame: FlowMatrix, served: ServedFlow, supply: Vector, mix: tuple[float, ...], deadline: Deadline
) -> Vector:
    """Return a flow of the same rate over the fewest arcs; unchanged if there are too many candidates."""
    arcs = np.flatnonzero(served.short <= _SHORTFALL_TOLERANCE)
    used = int(np.count_nonzero(served.flow > 0))
    if len(arcs) > _MAX_MILP_ARCS or len(arcs) == used:
        return served.flow
    try:
        found = highs.solve_milp(*_build_program(frame, served, supply, mix, arcs), deadline, branches=_MAX_BRANCHES)
    except DeadlineExceeded:
        return served.flow
    if found is None or round(found.value) >= used:
        return served.flow
    chosen = frame.solve_flow(supply, mix, arcs[found.x[len(arcs) :] > 0.5])
    return served.flow if chosen.rate < served.rate * (1 - 1e-8) else chosen.flow


def _arc_capacity(frame: FlowMatrix, supply: Vector, arc: Arc) -> float:
    """Return the rate of ``arc`` if its replicas did nothing else.

    It is in the solver's units.
    """
    return min((supply[use.option] / (use.seconds * frame.unit) for use in arc.uses if use.seconds > 0), default=np.inf)


def _build_program(
    frame: FlowMatrix, served: ServedFlow, supply: Vector, mix: tuple[float, ...], arcs: Vector
) -> tuple[Program, Vector]:
    """Build the program. Columns: the flow of each arc, then whether it is used.

    The rate is slightly lower, so that rounding cannot make it infeasible.
    """
    rate, count = served.rate / frame.unit * (1 - 1e-9), len(arcs)
    most = np.array(
        [
            min(mix[arc.kind] * rate, _arc_capacity(frame, supply, arc))
            for arc in map(frame.network.arcs.__getitem__, arcs)
        ]
    )
    matrix: Any = sparse.block_array(
        [
            [frame.flow_balance[:, arcs], None],
            [frame.work_matrix[:, arcs], sparse.csc_array((frame.work_rows, count))],
            [sparse.eye_array(count), -sparse.diags_array(most)],
        ],
        format="csc",
    )
    demand = frame.demand_vector(mix) * rate
    low = np.concatenate([demand, np.full(frame.work_rows + count, -np.inf)])
    high = np.concatenate([demand, supply, np.zeros(count)])
    whole = np.concatenate([np.zeros(count), np.ones(count)])
    upper = np.concatenate([most, np.ones(count)])
    return Program(matrix, low, high, np.zeros(2 * count), upper, whole), whole
