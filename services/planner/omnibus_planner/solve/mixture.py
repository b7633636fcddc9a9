"""Number of cells of each size: fewest GPUs for a rate, most requests within given GPUs. Exact for any sizes.

The paper's Algorithm 2 takes the largest cell that does not exceed the remaining rate, which is not optimal. For cells
1 with 1.0 and 2 with 2.5 req/s, and a rate of 2.4, it takes 3 GPUs instead of 2. It may also not terminate. ``printed``
keeps it as a baseline.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from omnibus_planner.solve.problem import Infeasible, check_amount, require

#: Relative loss of a sum of rates by rounding.
_ROUNDING = 1e-9
#: Most steps of the printed algorithm, and the largest size up to which cells are combined.
_MAX_STEPS, _MAX_CELL_GPUS = 1_000_000, 256


class Cell(msgspec.Struct, frozen=True):
    """A GPU allocation that serves whole requests alone: its GPUs and its ``rate`` in req/s."""

    gpus: int
    rate: float


class Mixture(msgspec.Struct, frozen=True):
    """Cells by size, their GPUs, and their rate in req/s."""

    cells: dict[int, int]
    gpus: int
    rate: float


def efficient_cells(cells: Sequence[Cell], *, printed: bool = False) -> list[Cell]:
    """Select sizes that serve more than smaller ones on as many GPUs.

    These are the sizes of Algorithm 1, from line 4. With ``printed``, the smallest size is always kept; otherwise a
    size that serves nothing is dropped.
    """
    kept: list[Cell] = []
    for cell in sorted(_check_cells(cells), key=lambda cell: cell.gpus):
        if not printed and cell.rate <= 0:
            continue
        if not kept or cell.rate > cell.gpus / kept[-1].gpus * kept[-1].rate * (1 + _ROUNDING):
            kept.append(cell)
    return kept


def fewest_gpus(cells: Sequence[Cell], rate: float) -> Mixture:
    """Return the mixture with the fewest GPUs for ``rate`` req/s. Raises ``Infeasible`` if no cell serves requests.

    Let g* be the densest size. In some optimum fewer than g* cells have another size. Among g* of them, some add up to
    a multiple of g*, and as many densest cells serve no less. So best[n] is needed only for n < g* * max g, at any
    rate. The rest is a division.
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
    """Return the mixture with the most req/s within ``gpus``."""
    require(gpus >= 0, f"there are {gpus} GPUs")
    if not any(cell.rate > 0 for cell in _check_cells(cells)):
        return Mixture({}, 0, 0.0)
    dense, table = _best_rates(cells)
    rates = [(table[n][0] + (gpus - n) // dense.gpus * dense.rate, -n) for n in range(min(gpus, len(table) - 1) + 1)]
    base = -max(rates)[1]
    return _build_mixture(table, base, dense, (gpus - base) // dense.gpus)


def binary_mixture(cells: Sequence[Cell], gpus: int) -> Mixture:
    """Return the mixture with the most req/s, for nested sizes.

    If each size divides the next, it takes the largest efficient cell as often as it fits, then smaller ones. This is
    optimal for such sizes; for others it calls ``most_requests``. The mixture fits into ``gpus``.
    """
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


def printed_mixture(cells: Sequence[Cell], rate: float) -> Mixture | None:
    """Run Algorithm 2 as printed; None if it does not terminate."""
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
    """Return the densest cell, and the best mixtures by number of GPUs.

    A mixture is its rate, and the size of its last cell. A size of 0 means that one GPU is idle.
    """
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
