"""Replicas on nodes with limited bandwidth between them (Appendix A, corrected).

Use it for rates at which traffic binds. As printed, Equations 7 and 8 bound nothing. Traffic f[s,s',h,h'] is not tied
to the nodes of replicas, and may all be put on (h, h). Here a[t,p,j,h] is the rate of path p whose j-th executor is on
node h. z[t,p,i,j,h,h'] is the traffic from its i-th executor on h to its j-th on h':

    sum over h of a[t,p,j,h] = x[t,p]      sum over h' of z = a[t,p,i,h]      sum over h of z = a[t,p,j,h']
    sum of sec * a over paths through s <= y[s,h]                sum of c_s * y[s,h] <= G_h
    for h != h': sum of GB * z <= B[h,h']                        least sum of c_s * y[s,h]

Solve times grow fast with the number of nodes: 2 to 4 take about a second, 8 more than a minute. Embeddings of 10,000
tokens are 72 MB. They bind on 10 GbE, but not on RDMA; for the usual case see ``placement.py``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from scipy import sparse

from omnibus_planner.solve import highs
from omnibus_planner.solve.constraints import SolverNode
from omnibus_planner.solve.flow_network import Arc, Network
from omnibus_planner.solve.highs import Deadline, Program, Vector
from omnibus_planner.solve.problem import check_amount, require
from omnibus_planner.solve.query import RATE_TOLERANCE

#: Pairs of a path's stops (by position), and the GB that each request moves between them.
Traffic = Callable[[Arc], list[tuple[int, int, float]]]
#: Most paths of a network here, and the most paths times pairs of nodes.
_MAX_PATHS, _MAX_PATH_PAIRS = 2000, 200_000


class Placed(msgspec.Struct, frozen=True):
    """Replicas by option and node; ``gap`` is the largest relative saving of GPUs that may remain."""

    gpus: int
    replicas: dict[str, dict[str, int]]
    gap: float = 0.0


def traffic_between_options(network: Network, edges: Mapping[tuple[str, str], float]) -> Traffic:
    """Return the GB per request between successive options of a path."""
    names = network.option_names
    for (first, then), size in edges.items():
        check_amount(size, f"GB per request from {first} to {then}")

    def arc_traffic(arc: Arc) -> list[tuple[int, int, float]]:
        hops = [names[use.option] for use in arc.uses]
        pairs = [(at, at + 1, edges.get((hops[at], hops[at + 1]), 0.0)) for at in range(len(hops) - 1)]
        return [pair for pair in pairs if pair[2] > 0]

    return arc_traffic


def traffic_between_components(edges: Mapping[tuple[str, str], float]) -> Traffic:
    """Return the GB per request between components.

    They move directly to the executor of the second component.
    """
    for (first, then), size in edges.items():
        check_amount(size, f"GB per request from {first} to {then}")

    def arc_traffic(arc: Arc) -> list[tuple[int, int, float]]:
        where = {part: at for at, use in enumerate(arc.uses) for part in use.role}
        moved: dict[tuple[int, int], float] = {}
        for (first, then), size in edges.items():
            if first in where and then in where and where[first] != where[then]:
                pair = where[first], where[then]
                moved[pair] = moved.get(pair, 0.0) + size
        return [(*pair, size) for pair, size in moved.items() if size > 0]

    return arc_traffic


def list_paths(network: Network) -> list[Arc]:
    """Return all paths as single arcs. Raises ``BadRequest`` if there are too many."""
    leaving: dict[tuple[int, int], list[Arc]] = {}
    for arc in network.arcs:
        leaving.setdefault((arc.kind, arc.tail), []).append(arc)
    found: list[Arc] = []
    for kind, whole in enumerate(network.whole):
        for arc in _extend_path(Arc(kind, 0, 0, ()), whole, leaving) if network.shares[kind] > 0 else ():
            found.append(arc)
            require(len(found) <= _MAX_PATHS, f"there are more than {_MAX_PATHS} paths: list fewer options")
    return found


def _extend_path(begun: Arc, whole: int, leaving: Mapping[tuple[int, int], list[Arc]]) -> Iterator[Arc]:
    if begun.head == whole:
        yield begun
        return
    for arc in leaving.get((begun.kind, begun.head), ()):
        yield from _extend_path(Arc(begun.kind, 0, arc.head, begun.uses + arc.uses), whole, leaving)


def solve_topology(
    network: Network,
    rate: float,
    nodes: Mapping[str, SolverNode],
    bandwidth: Mapping[tuple[str, str], float],
    traffic: Traffic | None,
    within: float = 30.0,
) -> Placed | None:
    """Return the fewest GPUs that serve ``rate`` req/s on ``nodes``; None if none do.

    ``bandwidth`` is in GB/s from one node to another; other pairs have no link. Without ``traffic`` only the size of
    nodes binds, which is equivalent to the paper's printed model.
    """
    check_amount(rate, "the rate")
    for (start, end), size in bandwidth.items():
        require({start, end} <= nodes.keys(), f"there is bandwidth from {start} to {end}, which are no nodes")
        check_amount(size, f"bandwidth from {start} to {end}")
    for name, node in nodes.items():
        require(node.gpus >= 0, f"node {name} has {node.gpus} GPUs")
    paths = list_paths(network)
    require(
        len(paths) * len(nodes) ** 2 <= _MAX_PATH_PAIRS,
        f"{len(paths)} paths over {len(nodes)} nodes are too many: name fewer options or nodes",
    )
    build = _TopologyProgram(network, list(nodes.values()), rate)
    build.add_paths(paths, traffic)
    build.add_links([[bandwidth.get((start, end), 0.0) for end in nodes] for start in nodes])
    found = highs.solve_milp(build.build_program(), build.cost_vector(), Deadline(within))
    if found is None:
        return None
    placed = np.round(found.x[: build.first]).reshape(build.options, len(nodes))
    gpus = round(float(build.gpus @ placed.sum(axis=1)))
    replicas = {
        option: {name: int(count) for name, count in zip(nodes, row, strict=True) if count}
        for option, row in zip(network.option_names, placed, strict=True)
        if row.any()
    }
    return Placed(gpus, replicas, 0.0 if found.proven or gpus == 0 else max(0.0, 1 - found.bound / gpus))


@dataclass
class _Rows:
    """Builder of sparse rows."""

    cells: list[tuple[int, int, float]] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add_row(self, low: float, high: float) -> int:
        self.low.append(low)
        self.high.append(high)
        return len(self.low) - 1

    def set_cell(self, row: int, column: int, value: float) -> None:
        self.cells.append((row, column, value))


class _TopologyProgram:
    """Columns: y[s,h], then for each path a[j,h] and z. Rates are fractions of the requested one."""

    def __init__(self, network: Network, nodes: list[SolverNode], rate: float) -> None:
        self._network, self._nodes, self._rate = network, nodes, rate
        self.options = len(network.options)
        self.first = self.columns = self.options * len(nodes)
        self.gpus = np.array([option.gpus for option in network.options.values()], float)
        self._rows = _Rows()
        self._work = [self._rows.add_row(-np.inf, 0.0) for _ in range(self.first)]
        self._moved: dict[tuple[int, int], list[tuple[int, float]]] = {}
        for at in range(self.first):
            self._rows.set_cell(self._work[at], at, -1.0)

    def add_paths(self, arcs: list[Arc], traffic: Traffic | None) -> None:
        starts: dict[int, list[int]] = {kind: [] for kind, share in enumerate(self._network.shares) if share > 0}
        for arc in arcs:
            stops = [self._add_stop(use.option, use.seconds) for use in arc.uses]
            starts[arc.kind] += stops[0]
            for before, after in pairwise(stops):
                self._add_equality(before, after)
            for start, end, size in traffic(arc) if traffic else ():
                self._add_flow(stops[start], stops[end], size)
        for kind, columns in starts.items():
            share = self._network.shares[kind] * (1 - RATE_TOLERANCE)
            row = self._rows.add_row(share, np.inf)
            for column in columns:
                self._rows.set_cell(row, column, 1.0)

    def _new_column(self) -> int:
        self.columns += 1
        return self.columns - 1

    def _add_stop(self, option: int, seconds: float) -> list[int]:
        """Add one column per node: the rate of a path whose stop is there."""
        found = [self._new_column() for _ in self._nodes]
        for node, column in enumerate(found):
            self._rows.set_cell(self._work[option * len(self._nodes) + node], column, seconds * self._rate)
        return found

    def _add_equality(self, some: list[int], others: list[int]) -> None:
        row = self._rows.add_row(0.0, 0.0)
        for column in some:
            self._rows.set_cell(row, column, 1.0)
        for column in others:
            self._rows.set_cell(row, column, -1.0)

    def _add_flow(self, start: list[int], end: list[int], size: float) -> None:
        flows = [[self._new_column() for _ in end] for _ in start]
        for at, column in enumerate(start):
            self._add_equality([column], flows[at])
        for at, column in enumerate(end):
            self._add_equality([column], [flow[at] for flow in flows])
        for one, row in enumerate(flows):
            for other, column in enumerate(row):
                if one != other:
                    self._moved.setdefault((one, other), []).append((column, size * self._rate))

    def add_links(self, bandwidth: list[list[float]]) -> None:
        for (one, other), flows in self._moved.items():
            row = self._rows.add_row(-np.inf, bandwidth[one][other])
            for column, size in flows:
                self._rows.set_cell(row, column, size)
        for number, node in enumerate(self._nodes):
            row = self._rows.add_row(-np.inf, float(node.gpus))
            for option in range(self.options):
                self._rows.set_cell(row, option * len(self._nodes) + number, self.gpus[option])

    def build_program(self) -> Program:
        rows, columns, values = zip(*self._rows.cells, strict=True)
        shape = len(self._rows.low), self.columns
        matrix: Any = sparse.csc_array((values, (rows, columns)), shape=shape)
        upper = np.full(self.columns, np.inf)
        upper[: self.first] = [
            node.gpus // option.gpus if option.gpu == node.gpu else 0
            for option in self._network.options.values()
            for node in self._nodes
        ]
        whole = np.zeros(self.columns)
        whole[: self.first] = 1.0
        return Program(
            matrix, np.array(self._rows.low), np.array(self._rows.high), np.zeros(self.columns), upper, whole
        )

    def cost_vector(self) -> Vector:
        cost = np.zeros(self.columns)
        cost[: self.first] = np.repeat(self.gpus, len(self._nodes))
        return cost
