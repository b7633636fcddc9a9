"""Tests that run by night only, with reasons and stand-ins: ``by_night.toml``.

The table names a test of ``make test-all`` that checks the same behaviour.
"""

import functools
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

_FILE = Path(__file__).with_suffix(".toml")
#: Every test that was found, before any was left out, to whether it runs by night.
COLLECTED = pytest.StashKey[dict[str, bool]]()


class Night(NamedTuple):
    """Tests of one row: ``tests`` and ``held_by`` are node ids, with or without parameter ids."""

    tests: tuple[str, ...]
    why: str
    held_by: tuple[str, ...]


class NightTable(NamedTuple):
    """All tests that run by night, except those with a marker.

    Other tests cover those in ``rows``. ``kept`` contains, for a parametrized test, the ids that each run tries.
    """

    rows: tuple[Night, ...]
    kept: Mapping[str, tuple[str, ...]]


@functools.cache
def read_table() -> NightTable:
    """Return the rows of the file. Raises ``KeyError`` for a row with a missing key."""
    document = tomllib.loads(_FILE.read_text())
    rows = tuple(Night(tuple(row["tests"]), row["why"], tuple(row["held_by"])) for row in document["rows"])
    return NightTable(rows, {test: tuple(ids) for test, ids in document["kept"].items()})


def is_by_night(id: str) -> bool:
    """Return True if day runs skip the test with this node id."""
    test, is_parametrized, parameters = id.partition("[")
    patterns = read_table().kept.get(test)
    if (
        is_parametrized
        and patterns is not None
        and not any(fits_pattern(parameters.removesuffix("]"), one) for one in patterns)
    ):
        return True
    return not _left_to_others().isdisjoint((id, test))


def mark_items(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Mark the ``items`` that run by night, and store results in ``config``."""
    results = config.stash[COLLECTED] = {}
    for item in items:
        if is_by_night(item.nodeid):
            item.add_marker(pytest.mark.nightly)
        results[item.nodeid] = item.get_closest_marker("nightly") is not None


def fits_pattern(parameters: str, kept: str) -> bool:
    """Return True if ``pattern`` matches the id ``parameters``.

    A trailing ``*`` in ``kept`` matches anything.
    """
    return parameters.startswith(kept[:-1]) if kept.endswith("*") else parameters == kept


@functools.cache
def _left_to_others() -> frozenset[str]:
    return frozenset(test for row in read_table().rows for test in row.tests)
