"""The program of one question: the frame's matrix, and rows for the terms.

Columns: replicas, rate, counts of limited options, limited links, flows, replicas on nodes, new replicas.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from omnibus_planner.solve.constraints import Terms, available_gpus, covering_rows, replica_vector
from omnibus_planner.solve.flow_matrix import FlowMatrix
from omnibus_planner.solve.highs import Program, Vector

#: Relative difference of equal work of replicas.
_EQUAL_TOLERANCE = 1e-12


class Objective(NamedTuple):
    """Objective to minimise: ``cost`` of one replica of each option plus ``spawn`` of each new one."""

    name: str
    cost: Vector
    spawn: Vector | None = None

    @property
    def is_integral(self) -> bool:
        """True if all values are whole numbers."""
        return self.spawn is None and bool(np.all(self.cost == np.round(self.cost)))

    def value(self, replicas: Vector, running: Vector) -> float:
        extra = 0.0 if self.spawn is None else float(self.spawn @ np.maximum(replicas - running, 0.0))
        return float(self.cost @ replicas) + extra

    def cost_row(self, count: int, columns: int) -> Vector:
        """Return the row over ``columns`` columns.

        The first ``count`` columns are replicas, and the last are new ones.
        """
        row = np.zeros(columns)
        row[:count] = self.cost
        if self.spawn is not None:
            row[-count:] = self.spawn
        return row


class ProgramQuery(NamedTuple):
    """Bounds and mixes of a program. Rates are in req/s.

    ``cuts`` bound the rate by prices of supply, and ``held`` bounds goals by values. At least one replica must be of an
    option in ``fresh``.
    """

    lowest: float
    highest: float
    mixes: Sequence[Sequence[float]]
    cuts: Sequence[Vector] = ()
    held: Sequence[tuple[Objective, float]] = ()
    fresh: Vector | None = None


def assemble_program(
    frame: FlowMatrix, terms: Terms, asked: ProgramQuery, upper: Vector, *, packed: bool, spawning: bool
) -> Program:
    """Build the program over options with ``upper`` above 0; ``spawning`` adds columns for new replicas."""
    limited = _LimitedOptions(frame, terms, upper)
    program = frame.build_program(asked.mixes, frame.allowed_arcs(upper), upper, limited.supply)
    program.lower[frame.count] = asked.lowest / frame.unit
    program.upper[frame.count] = asked.highest / frame.unit
    program = limited.add_rows(_add_budget(frame, terms, program))
    program = _add_cuts(frame, asked, program, limited.supply)
    if packed:
        program = _add_node_packing(frame, terms, program, upper)
    if spawning:
        program = _add_new_replicas(frame, terms, program)
    for group in [*covering_rows(terms, frame), *([asked.fresh] if asked.fresh is not None else [])]:
        row = np.zeros(program.column_count)
        row[: frame.count] = group
        program = program.with_rows(_sparse_row(row), 1.0, np.inf)
    for goal, value in asked.held:
        program = program.with_rows(_sparse_row(goal.cost_row(frame.count, program.column_count)), -np.inf, value)
    return program


def _sparse_row(values: Vector) -> Any:
    return sparse.csc_array(values[None, :])


def _add_budget(frame: FlowMatrix, terms: Terms, program: Program) -> Program:
    """Add one row per GPU type: sum of c_s * r_s <= N_g (Equations 3 and 15)."""
    for kind, count in (available_gpus(terms) or {}).items():
        mine = np.array([option.gpu == kind for option in frame.network.options.values()])
        row = np.zeros(program.column_count)
        row[: frame.count] = np.where(mine, frame.gpus, 0.0)
        program = program.with_rows(_sparse_row(row), -np.inf, float(count))
    return program


class _LimitedOptions:
    """Options whose replicas may not be fully busy: one 0/1 column for each count of them.

    If each further replica may do as much as the first, columns for counts are not needed.
    """

    def __init__(self, frame: FlowMatrix, terms: Terms, upper: Vector) -> None:
        self._count, names = frame.count, frame.network.option_names
        each = {at: _equal_work(terms.admissible.get(name, (1.0,))) for at, name in enumerate(names)}
        self._limited = [at for at, work in each.items() if not work and upper[at] > 0]
        self._starts, width = [], frame.count + 1
        cells = [(at, at, work) for at, work in each.items() if work]
        for at in self._limited:
            work = terms.admissible[names[at]][: int(upper[at])]
            cells += [(at, width + level, value) for level, value in enumerate(work)]
            self._starts.append((width, len(work)))
            width += len(work)
        self._links = width if frame.work_rows > frame.count else None
        if self._links is not None:
            cells.append((frame.count, width, 1.0))
            width += 1
        rows, columns, values = zip(*cells, strict=True) if cells else ((), (), ())
        #: Seconds of work per second; sparse, (work rows, columns before the flows).
        self.supply = sparse.csc_array((values, (rows, columns)), shape=(frame.work_rows, width), dtype=float)

    def add_rows(self, program: Program) -> Program:
        """Add rows for the counts of limited options.

        They are r_s = sum of n * b_s,n and sum of b_s,n <= 1. The column of limited links is always 1.
        """
        if self._links is not None:
            program.lower[self._links] = program.upper[self._links] = 1.0
        for at, (start, levels) in zip(self._limited, self._starts, strict=True):
            program.upper[start : start + levels] = 1.0
            program.integer[start : start + levels] = 1.0
            rows = np.zeros((2, program.column_count))
            rows[0, at], rows[0, start : start + levels] = -1.0, np.arange(1, levels + 1)
            rows[1, start : start + levels] = 1.0
            program = program.with_rows(sparse.csc_array(rows), np.array([0.0, -np.inf]), np.array([0.0, 1.0]))
        return program


def _equal_work(levels: Sequence[float]) -> float:
    """Return the work of each replica if all may do as much as the first; else 0."""
    equal = np.allclose(levels, levels[0] * np.arange(1, len(levels) + 1), rtol=_EQUAL_TOLERANCE, atol=0.0)
    return levels[0] if equal else 0.0


def _add_cuts(frame: FlowMatrix, asked: ProgramQuery, program: Program, supply: Any) -> Program:
    """Add R <= sum of price_s * supply_s.

    Prices are at most the highest rate over the least work of one replica.
    """
    for prices in asked.cuts:
        row = np.zeros(program.column_count)
        row[: supply.shape[1]] = -(np.minimum(prices, asked.highest * _inverse_least(supply)) @ supply) / frame.unit
        row[frame.count] = 1.0
        program = program.with_rows(_sparse_row(row), -np.inf, 0.0)
    return program


def _inverse_least(supply: Any) -> Vector:
    """Return 1 / the least work of each option that has a replica."""
    least = np.full(supply.shape[0], np.inf)
    cells = supply.tocoo()
    np.minimum.at(least, cells.row, np.where(cells.data > 0, cells.data, np.inf))
    return 1.0 / least


def _add_node_packing(frame: FlowMatrix, terms: Terms, program: Program, upper: Vector) -> Program:
    """Put each replica on one node: r_s = sum of y_s,h and sum of c_s * y_s,h <= G_h (Equation 6)."""
    used = np.flatnonzero(upper > 0)
    options, first = list(frame.network.options.values()), program.column_count
    fits = [
        [float(options[at].gpu == node.gpu) * (node.gpus // options[at].gpus) for at in used]
        for node in terms.nodes.values()
    ]
    program = program.with_columns(len(used) * len(fits), np.array(fits).ravel(), integer=True)
    same = np.zeros((len(used), program.column_count))
    room = np.zeros((len(fits), program.column_count))
    for number in range(len(fits)):
        start = first + number * len(used)
        room[number, start : start + len(used)] = frame.gpus[used]
        same[np.arange(len(used)), start + np.arange(len(used))] = 1.0
    same[np.arange(len(used)), used] = -1.0
    program = program.with_rows(sparse.csc_array(same), 0.0, 0.0)
    return program.with_rows(
        sparse.csc_array(room), -np.inf, np.array([float(node.gpus) for node in terms.nodes.values()])
    )


def _add_new_replicas(frame: FlowMatrix, terms: Terms, program: Program) -> Program:
    """Add u_s >= r_s - running_s, u_s >= 0."""
    before = program.column_count
    program = program.with_columns(frame.count, np.inf, integer=False)
    eye = sparse.eye_array(frame.count, format="csc")
    blank = sparse.csc_array((frame.count, before - frame.count))
    return program.with_rows(sparse.hstack([eye, blank, -eye]), -np.inf, replica_vector(frame, terms.running))
