"""Experiments and their findings, as data."""

from collections.abc import Callable, Mapping
from math import inf
from typing import Literal, NamedTuple

import msgspec

#: Name of the planner's own plan in figures.
PLANNED = "planned"
#: A value of a table: text, or a number with three significant digits.
Value = str | float | int


class PaperClaim(msgspec.Struct, frozen=True):
    """One figure of a paper: its name, the paper's value, and ours."""

    what: str
    paper: str
    ours: str


class Table(msgspec.Struct, frozen=True):
    """A table with the names of its columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


class Plot(msgspec.Struct, frozen=True):
    """Lines or bars of (x, y) by name. For bars, x is an index into ``groups``."""

    title: str
    x: str
    y: str
    series: dict[str, tuple[tuple[float, float], ...]]
    kind: Literal["lines", "bars"] = "lines"
    groups: tuple[str, ...] = ()


class Margin(msgspec.Struct, frozen=True):
    """Ratio of a plan to the best other system.

    Both have the same goals and routing. ``where`` is the model, the workload or the goals, if there are several.
    """

    where: str
    best: str
    ratio: float


def margin_of(where: str, rates: Mapping[str, float], system: str = PLANNED) -> Margin:
    """Return the margin of ``system`` over the best of the others in ``rates``."""
    best = max((name for name in rates if name != system), key=lambda name: rates[name])
    return Margin(where, best, rates[system] / rates[best] if rates[best] else inf)


class Findings(msgspec.Struct, frozen=True):
    """Findings of an experiment.

    ``conditions`` describe the simulation, ``remarks`` the reasons for different figures, and ``margins`` compare
    plans with the best other system.
    """

    conditions: tuple[str, ...]
    claims: tuple[PaperClaim, ...]
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    remarks: tuple[str, ...] = ()
    margins: tuple[Margin, ...] = ()


class Experiment(NamedTuple):
    """An experiment.

    ``name`` is for the command line, ``figures`` are those of ``paper`` that it repeats, and ``run`` runs it.
    """

    name: str
    title: str
    paper: str
    figures: str
    run: Callable[[], Findings]


def times(value: float) -> str:
    """Format a ratio."""
    return f"{value:.2f}x"
