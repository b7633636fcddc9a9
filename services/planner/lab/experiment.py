"""Experiments and what they find, as data."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

#: A value of a table: text, or a number that is shown with three digits.
Value = str | float | int


class PaperClaim(msgspec.Struct, frozen=True):
    """One figure of a paper: what it is, what the paper has, and what is measured here."""

    what: str
    paper: str
    ours: str


class Table(msgspec.Struct, frozen=True):
    """A table with the names of its columns."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]


class Plot(msgspec.Struct, frozen=True):
    """Lines, or bars, of (x, y) by name. With bars x is the number of the group, ``groups`` its name."""

    title: str
    x: str
    y: str
    series: dict[str, tuple[tuple[float, float], ...]]
    kind: Literal["lines", "bars"] = "lines"
    groups: tuple[str, ...] = ()


class Findings(msgspec.Struct, frozen=True):
    """Findings of an experiment. ``conditions`` say what was simulated, ``remarks`` why figures differ."""

    conditions: tuple[str, ...]
    claims: tuple[PaperClaim, ...]
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    remarks: tuple[str, ...] = ()


class Experiment(NamedTuple):
    """An experiment: a ``name`` for the command line, the ``figures`` of the ``paper`` that it repeats, and ``run``."""

    name: str
    title: str
    paper: str
    figures: str
    run: Callable[[], Findings]


def times(value: float) -> str:
    """A ratio as text."""
    return f"{value:.2f}x"
