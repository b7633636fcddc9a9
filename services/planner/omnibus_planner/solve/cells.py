"""Cells: the best deployment of each size, which serves whole requests alone.

If cells are a node's powers of two, a mixture of them serves 15-20 % less than one deployment over all GPUs
(``Solver.solve_most``). Cells are for failure domains and locality; their sizes are free.
"""

from collections.abc import Sequence

import msgspec

from omnibus_planner.solve.constraints import Terms
from omnibus_planner.solve.mixture import Cell
from omnibus_planner.solve.problem import require
from omnibus_planner.solve.solution import Solution
from omnibus_planner.solve.solver import Solver


def powers_of_two(largest: int) -> list[int]:
    """Return 1, 2, 4, ... up to 2 ** ``largest`` (Algorithm 1)."""
    require(0 <= largest <= 10, f"the largest cell is 2 ** {largest}: the exponent must be 0 to 10")
    return [1 << exponent for exponent in range(largest + 1)]


def solve_sizes(solver: Solver, sizes: Sequence[int], terms: Terms | None = None, gpu: str = "") -> dict[int, Solution]:
    """Solve for the best deployment of each size (Algorithm 1, lines 1 to 3); rate 0 if none fits."""
    given = terms or Terms()
    return {size: solver.solve_most(msgspec.structs.replace(given, gpus={gpu: size})) for size in sizes}


def to_cells(solutions: dict[int, Solution]) -> list[Cell]:
    """Convert solutions to cells."""
    return [Cell(size, solution.rate) for size, solution in solutions.items()]
