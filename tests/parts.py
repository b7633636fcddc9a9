"""A part of a run: ``pytest --part 2/3`` runs a third of the groups of tests, and all three parts run every test once.

Continuous integration runs one part of the long tests, which the commit chooses (``.ci/run``).
"""

import argparse
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import pytest


class RunPart(NamedTuple):
    """Part ``number`` (from 1) of ``total``."""

    number: int
    total: int


def parse_part(text: str) -> RunPart:
    """Parse ``2/3``. Raises ``argparse.ArgumentTypeError``."""
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} must be NUMBER/COUNT, such as 2/3")
    return RunPart(int(number), int(count))


def choose_groups(part: RunPart, groups: Iterable[str]) -> set[str]:
    """Return the groups of ``part``: one entry of ``groups`` is one test, and parts have about as many tests each."""
    counts = Counter(groups)
    sizes = [0] * part.total
    chosen = set()
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        smallest = sizes.index(min(sizes))
        sizes[smallest] += counts[name]
        if smallest == part.number - 1:
            chosen.add(name)
    return chosen


def select_part(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the ``items`` of other parts than that of ``--part``; a group is the argument of ``xdist_group``."""
    part: RunPart | None = config.getoption("part")
    if part is None:
        return
    groups = [str(item.get_closest_marker("xdist_group").args[0]) for item in items]  # type: ignore[union-attr]
    chosen = choose_groups(part, groups)
    others = [item for item, group in zip(items, groups, strict=True) if group not in chosen]
    items[:] = [item for item, group in zip(items, groups, strict=True) if group in chosen]
    config.hook.pytest_deselected(items=others)
