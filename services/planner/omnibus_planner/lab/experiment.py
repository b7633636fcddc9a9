"""Experiments and their findings, as data."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

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


class Findings(msgspec.Struct, frozen=True):
    """Findings of an experiment.

    ``conditions`` describe the simulation, and ``remarks`` the reasons for different figures.
    """

    conditions: tuple[str, ...]
    claims: tuple[PaperClaim, ...]
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    remarks: tuple[str, ...] = ()


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
