"""Replicas onto nodes by a program: first most running replicas stay, then the least traffic crosses nodes.

Columns are replicas x[o,n] of each option on each node, and those of them that stay. A pair of options also has the
share s[a,b,n] of their traffic that stays on node n. It is at most x[a,n] / R_a and x[b,n] / R_b.
"""

from collections.abc import Mapping

import numpy as np
from scipy import sparse

from omnibus_planner.solve import highs
from omnibus_planner.solve.constraints import SolverNode
from omnibus_planner.solve.highs import Deadline, Program, Vector
from omnibus_planner.solve.problem import SolverOption
from omnibus_planner.solve.traffic import OptionTraffic

#: Weight of all traffic together: less than one replica that stays.
_TRAFFIC_WEIGHT = 0.5


def place_exactly(
    replicas: Mapping[str, int],
    options: Mapping[str, SolverOption],
    nodes: Mapping[str, SolverNode],
    running: Mapping[str, Mapping[str, int]],
    traffic: OptionTraffic,
    deadline: Deadline,
) -> dict[str, dict[str, int]] | None:
    """Return replicas by option and node; None if they do not fit. Raises ``DeadlineExceeded``."""
    names, wanted = list(nodes), [option for option, count in replicas.items() if count]
    pairs = [(option, node) for option in wanted for node in names]
    count = len(pairs)
    if not count:
        return {}
    upper = [nodes[n].gpus // options[o].gpus if nodes[n].gpu == options[o].gpu else 0 for o, n in pairs]
    here = [running.get(option, {}).get(node, 0) for option, node in pairs]
    blank = sparse.csc_array((len(wanted) + len(names), count))
    every = sparse.kron(sparse.eye_array(len(wanted)), np.ones((1, len(names))))
    room = sparse.hstack([options[option].gpus * sparse.eye_array(len(names)) for option in wanted])
    total = np.array([float(replicas[option]) for option in wanted])
    stay = sparse.hstack([-sparse.eye_array(count), sparse.eye_array(count)])
    program = Program(
        sparse.vstack([sparse.hstack([sparse.vstack([every, room]), blank]), stay], format="csc"),
        np.concatenate([total, np.full(len(names) + count, -np.inf)]),
        np.concatenate([total, [float(nodes[name].gpus) for name in names], np.zeros(count)]),
        np.zeros(2 * count),
        np.array([*upper, *here], float),
        np.concatenate([np.ones(count), np.zeros(count)]),
    )
    cost = np.concatenate([np.zeros(count), -np.ones(count)])
    program, cost = _with_traffic(program, cost, replicas, pairs, names, traffic)
    found = highs.solve_milp(program, cost, deadline)
    if found is None:
        return None
    places: dict[str, dict[str, int]] = {}
    for (option, node), value in zip(pairs, np.round(found.x[:count]), strict=True):
        if value:
            places.setdefault(option, {})[node] = int(value)
    return places


def _with_traffic(
    program: Program,
    cost: Vector,
    replicas: Mapping[str, int],
    pairs: list[tuple[str, str]],
    names: list[str],
    traffic: OptionTraffic,
) -> tuple[Program, Vector]:
    """Add a column and two rows per pair of options and node."""
    if not traffic:
        return program, cost
    kept = [(ends, node) for ends in traffic for node in names]
    first = program.column_count
    program = program.with_columns(len(kept), 1.0, integer=False)
    numbers = {pair: at for at, pair in enumerate(pairs)}
    cells = [
        (row, column, value)
        for at, (ends, node) in enumerate(kept)
        for row, option in ((2 * at, ends[0]), (2 * at + 1, ends[1]))
        for column, value in ((first + at, 1.0), (numbers[option, node], -1.0 / replicas[option]))
    ]
    rows, columns, values = zip(*cells, strict=True)
    matrix = sparse.csc_array((values, (rows, columns)), shape=(2 * len(kept), program.column_count))
    whole = sum(traffic.values())
    worth = [-_TRAFFIC_WEIGHT * traffic[ends] / whole for ends, _ in kept]
    return program.with_rows(matrix, -np.inf, 0.0), np.concatenate([cost, worth])
