"""Number of cells of each size: fewest GPUs for a rate, most requests within given GPUs. Exact for any sizes.

The paper's Algorithm 2 takes the largest cell that does not exceed what is left of the rate. It is not
optimal (cells 1: 1.0 and 2: 2.5 req/s, 2.4 wanted: 3 GPUs, where 2 do) and may not end: ``printed``
keeps it as a baseline.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from services.planner.solve.problem import Infeasible, check_amount, require

#: Relative; what rounding may take from a sum of rates.
_ROUNDING = 1e-9
#: Steps that the printed algorithm may take, and sizes up to which cells are combined.
_MAX_STEPS, _MAX_CELL_GPUS = 1_000_000, 256


class Cell(msgspec.Struct, frozen=True):
    """A GPU allocation that serves whole requests on its own: its GPUs and its ``rate`` in req/s."""

    gpus: int
    rate: float


class Mixture(msgspec.Struct, frozen=True):
    """Cells by size, their GPUs, and the rate that they serve, in req/s."""

    cells: dict[int, int]
    gpus: int
    rate: float


def efficient_cells(cells: Sequence[Cell], *, printed: bool = False) -> list[Cell]:
    """Algorithm 1, line 4 on: sizes that serve more than smaller ones of as many GPUs together.

    As ``printed``, the smallest size is always kept; here one that serves nothing is dropped.
    """
    kept: list[Cell] = []
    for cell in sorted(_check_cells(cells), key=lambda cell: cell.gpus):
        if not printed and cell.rate <= 0:
            continue
        if not kept or cell.rate > cell.gpus / kept[-1].gpus * kept[-1].rate * (1 + _ROUNDING):
            kept.append(cell)
    return kept


def fewest_gpus(cells: Sequence[Cell], rate: float) -> Mixture:
    """Fewest GPUs that serve ``rate`` req/s. Raises ``Infeasible`` when no cell serves anything.

    In some optimum fewer cells than g* are not of the densest size g*: among g* of them some add up to a
    multiple of g*, and as many densest cells serve no less. So best[n] is needed for n < g* * max g
    alone, whatever the rate; the rest is a division.
    """
    check_amount(rate, "the rate")
    if rate == 0:
        return Mixture({}, 0, 0.0)
    dense, table = _best_rates(cells)
    most = len(table) - 1
    choices = [(n + dense.gpus * _cell_count(rate - table[n][0], dense.rate), n) for n in range(most + 1)]
    gpus, base = min(choices)
    return _build_mixture(table, base, dense, (gpus - base) // dense.gpus)


def most_requests(cells: Sequence[Cell], gpus: int) -> Mixture:
    """Most requests per second within ``gpus``."""
    require(gpus >= 0, f"there are {gpus} GPUs")
    if not any(cell.rate > 0 for cell in _check_cells(cells)):
        return Mixture({}, 0, 0.0)
    dense, table = _best_rates(cells)
    rates = [(table[n][0] + (gpus - n) // dense.gpus * dense.rate, -n) for n in range(min(gpus, len(table) - 1) + 1)]
    base = -max(rates)[1]
    return _build_mixture(table, base, dense, (gpus - base) // dense.gpus)


def binary_mixture(cells: Sequence[Cell], gpus: int) -> Mixture:
    """Most requests within ``gpus`` when each size divides the next: the largest efficient cell as often as it
    fits, then smaller ones. Optimal for such sizes; others go to ``most``."""
    require(gpus >= 0, f"there are {gpus} GPUs")
    kept = efficient_cells(cells)
    if any(larger.gpus % smaller.gpus for smaller, larger in pairwise(kept)):
        return most_requests(cells, gpus)
    left, found, rate = gpus, {}, 0.0
    for cell in reversed(kept):
        count, left = divmod(left, cell.gpus)
        if count:
            found[cell.gpus], rate = count, rate + count * cell.rate
    return Mixture(found, gpus - left, rate)


def bisected_mixture(cells: Sequence[Cell], rate: float) -> Mixture:
    """Fewest GPUs for ``rate`` by ``binary_mixture`` and bisection on the number of GPUs: for power-of-two sizes."""
    require(any(cell.rate > 0 for cell in _check_cells(cells)), "no cell serves anything")
    check_amount(rate, "the rate")
    low, high = 0, 1
    while binary_mixture(cells, high).rate < rate * (1 - _ROUNDING):
        low, high = high, high * 2
    while low < high:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if binary_mixture(cells, middle).rate >= rate * (1 - _ROUNDING) else (middle + 1, high)
        )
    return binary_mixture(cells, high) if rate > 0 else Mixture({}, 0, 0.0)


def printed_mixture(cells: Sequence[Cell], rate: float) -> Mixture | None:
    """Algorithm 2 as it is printed; None when it does not end."""
    known = sorted(_check_cells(cells), key=lambda cell: cell.gpus, reverse=True)
    require(bool(known), "there is no cell")
    check_amount(rate, "the rate")
    found: dict[int, int] = {}
    served, gpus = 0.0, 0
    for _ in range(_MAX_STEPS):
        if served >= rate:
            return Mixture(found, gpus, served)
        cell = next((cell for cell in known if cell.rate <= rate - served), known[-1])
        if cell.rate <= 0:
            return None
        served, gpus = served + cell.rate, gpus + cell.gpus
        found[cell.gpus] = found.get(cell.gpus, 0) + 1
    return None


def _cell_count(rate: float, each: float) -> int:
    return max(0, math.ceil(rate / each - _ROUNDING * max(1.0, rate / each)))


def _best_rates(cells: Sequence[Cell]) -> tuple[Cell, list[tuple[float, int]]]:
    """The densest cell, and for each number of GPUs the best rate and the last cell's size (0: one GPU is idle)."""
    useful = [cell for cell in _check_cells(cells) if cell.rate > 0]
    if not useful:
        raise Infeasible("no cell serves anything: allow larger ones")
    require(max(cell.gpus for cell in useful) <= _MAX_CELL_GPUS, f"cells may have {_MAX_CELL_GPUS} GPUs")
    dense = max(useful, key=lambda cell: (cell.rate / cell.gpus, -cell.gpus))
    others = [(cell.gpus, cell.rate) for cell in useful if cell.gpus != dense.gpus]
    table = [(0.0, 0)]
    largest = max((gpus for gpus, _ in others), default=0)
    for n in range(1, (dense.gpus - 1) * largest + 1):
        best = (table[n - 1][0], 0)
        for gpus, rate in others:
            if gpus <= n and table[n - gpus][0] + rate > best[0]:
                best = (table[n - gpus][0] + rate, gpus)
        table.append(best)
    return dense, table


def _build_mixture(table: Sequence[tuple[float, int]], base: int, dense: Cell, count: int) -> Mixture:
    found: dict[int, int] = {}
    for size in _chosen_sizes(table, base):
        found[size] = found.get(size, 0) + 1
    if count:
        found[dense.gpus] = count
    gpus = sum(size * times for size, times in found.items())
    return Mixture(found, gpus, table[base][0] + count * dense.rate)


def _chosen_sizes(table: Sequence[tuple[float, int]], n: int) -> Iterator[int]:
    while n > 0:
        size = table[n][1]
        if size:
            yield size
        n -= size or 1


def _check_cells(cells: Sequence[Cell]) -> Sequence[Cell]:
    for cell in cells:
        require(cell.gpus >= 1, f"a cell has {cell.gpus} GPUs")
        check_amount(cell.rate, f"the rate of the cell of {cell.gpus} GPUs")
    sizes = [cell.gpus for cell in cells]
    require(len(set(sizes)) == len(sizes), f"a cell size is given twice: {sizes}")
    return cells
