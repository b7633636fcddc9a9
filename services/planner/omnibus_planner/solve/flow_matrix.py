"""The matrix of a network, built once: replicas, one rate, and each request type's flow over its arcs.

    for each type t, set D    outflow - inflow  = pi_t * R at nothing finished, 0 elsewhere
    for each option s         sum of sec * flow <= supply_s, which is r_s replicas by default
    links, if they are limited    sum of GB / limit * flow <= 1

These are Equations 9, 11, 14 and 19 of the paper; 9 multiplies by throughput where it must divide. A new rate changes
two bounds, and a new mix changes one column.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from omnibus_planner.solve import highs
from omnibus_planner.solve.bounds import compute_bound, unreached_types
from omnibus_planner.solve.flow_network import Network
from omnibus_planner.solve.highs import Program, Vector

#: HiGHS works to 1e-6 absolute. Rates are scaled so that one GPU serves about this many, and rows of work by the second
#: number: an error is then one part in 1e8 of a GPU.
_RATE_SCALE, _WORK_SCALE = 100.0, 100.0


@dataclass(frozen=True)
class ServedFlow:
    """Result for given replicas.

    ``rate`` is the served rate in req/s, and ``flow`` the flow of each arc at that rate. ``short`` is each arc's
    distance from the best (0: it may have flow). ``prices`` are the req/s that one more second of work per second of
    each option would add; inf if there was none of it.
    """

    rate: float
    flow: Vector
    short: Vector
    prices: Vector


class FlowMatrix:
    """The matrix of ``network``, kept between solves.

    ``link_seconds`` are the seconds of all links together that a request takes on each arc; there is one per second. It
    becomes the last row of work. None means that links are not limited.
    """

    def __init__(self, network: Network, link_seconds: Sequence[float] | None = None) -> None:
        self.network = network
        self.count = len(network.options)
        self._link_seconds = link_seconds
        #: Rows of work: one for each option, and one for limited links.
        self.work_rows = self.count + (link_seconds is not None)
        self.gpus = np.array([option.gpus for option in network.options.values()], float)
        self.costs = np.array([option.cost for option in network.options.values()], float)
        self._rows = {(kind, 0): kind for kind in range(len(network.types))}
        for arc in network.arcs:
            self._rows.setdefault((arc.kind, arc.tail), len(self._rows))
        lost = {
            network.types.index(kind)
            for kind in unreached_types(network, [1.0] * len(network.types), range(len(network.arcs)))
        }
        shares = network.shares if any(network.shares) else [1.0] * len(network.types)
        each = compute_bound(
            network, [0.0 if kind in lost else share for kind, share in enumerate(shares)], self.gpus
        ).each
        #: Requests per second that the solver sees as 1.
        self.unit = 1.0 / (_RATE_SCALE * each) if each > 0 else 1.0 / _RATE_SCALE

    @cached_property
    def flow_balance(self) -> Any:
        """Outflow minus inflow of each set of finished components except the last; sparse, (sets, arcs)."""
        arcs = self.network.arcs
        out = [(self._rows[arc.kind, arc.tail], at, 1.0) for at, arc in enumerate(arcs)]
        into = [(self._rows[arc.kind, arc.head], at, -1.0) for at, arc in enumerate(arcs) if self._is_inner(arc)]
        return _sparse_matrix(out + into, (len(self._rows), len(arcs)))

    def _is_inner(self, arc: Any) -> bool:
        return (arc.kind, arc.head) in self._rows

    @cached_property
    def work_matrix(self) -> Any:
        """Seconds of each option per request on each arc, in scaled units; sparse, (work rows, arcs)."""
        cells = [
            (use.option, at, use.seconds * self.unit)
            for at, arc in enumerate(self.network.arcs)
            for use in arc.uses
            if use.seconds > 0
        ]
        cells += [(self.count, at, each * self.unit) for at, each in enumerate(self._link_seconds or ()) if each > 0]
        return _sparse_matrix(cells, (self.work_rows, len(self.network.arcs)))

    def demand_vector(self, mix: Sequence[float]) -> Vector:
        """Return the right-hand side of ``flow_balance`` at a rate of 1."""
        demand = np.zeros(len(self._rows))
        demand[: len(mix)] = mix
        return demand

    def allowed_arcs(self, allowed: Vector) -> Vector:
        """Return the numbers of the arcs over only allowed options; a use of 0 s needs no option."""
        return np.flatnonzero(~(self._option_needs @ (allowed <= 0)))

    @cached_property
    def _option_needs(self) -> Any:
        """Options that do work on each arc: a sparse matrix, (arcs, options)."""
        return (self.work_matrix[: self.count] > 0).T.tocsr()

    def build_program(self, mixes: Sequence[Sequence[float]], arcs: Vector, upper: Vector, supply: Any) -> Program:
        """Build the program. Columns: replicas, rate, other columns of ``supply``, then the flows of each mix.

        ``supply`` is the work of each option's columns; sparse, (work rows, columns before the flows).
        """
        before, scenarios, sets = supply.shape[1], len(mixes), len(self._rows)
        conserve, work = self.flow_balance[:, arcs], self.work_matrix[:, arcs]
        blocks: list[list[Any]] = []
        for at, mix in enumerate(mixes):
            left, right = [None] * at, [None] * (scenarios - at - 1)
            demand = (-self.demand_vector(mix), (np.arange(sets), np.full(sets, self.count)))
            blocks.append([sparse.csc_array(demand, shape=(sets, before)), *left, conserve, *right])
            blocks.append([-_WORK_SCALE * supply, *left, _WORK_SCALE * work, *right])
        low = np.tile(np.concatenate([np.zeros(sets), np.full(self.work_rows, -np.inf)]), scenarios)
        most = np.full(before + len(arcs) * scenarios, np.inf)
        most[: self.count] = upper
        integer = np.zeros(len(most))
        integer[: self.count] = 1
        matrix = sparse.block_array(blocks, format="csc")
        return Program(matrix, low, np.zeros(len(low)), np.zeros(len(most)), most, integer)

    def solve_flow(self, supply: Vector, mix: Sequence[float], only: Vector | None = None) -> ServedFlow:
        """Return the most that a ``supply`` of work serves at ``mix``.

        ``only`` restricts the arcs. Options without supply are excluded, so that a share of one in a billion differs
        from none.
        """
        flow, short = np.zeros(len(self.network.arcs)), np.full(len(self.network.arcs), np.inf)
        prices = np.where(supply > 0, 0.0, np.inf)
        arcs = self.allowed_arcs(supply[: self.count]) if only is None else only
        if unreached_types(self.network, mix, arcs):
            return ServedFlow(0.0, flow, short, prices)
        same = sparse.hstack(
            [self.flow_balance[:, arcs], sparse.csc_array(-self.demand_vector(mix)[:, None])], format="csc"
        )
        most = sparse.hstack([self.work_matrix[:, arcs], sparse.csc_array((self.work_rows, 1))], format="csc")
        cost = np.zeros(len(arcs) + 1)
        cost[-1] = -1.0
        done = highs.solve_linear(cost, most, supply, same, np.zeros(same.shape[0]))
        flow[arcs], short[arcs] = np.maximum(done.x[:-1], 0.0) * self.unit, done.waste[:-1]
        return ServedFlow(
            float(-done.value) * self.unit, flow, short, prices + np.maximum(done.prices, 0.0) * self.unit
        )


def _sparse_matrix(cells: Sequence[tuple[int, int, float]], shape: tuple[int, int]) -> Any:
    if not cells:
        return sparse.csc_array(shape, dtype=float)
    rows, columns, values = zip(*cells, strict=True)
    return sparse.csc_array((values, (rows, columns)), shape=shape)
