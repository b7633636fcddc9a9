"""Which tests run by night only, why, and which test of ``make test-all`` holds the same behaviour: ``by_night.toml``."""

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
    """Tests of one row: ``tests`` and ``held_by`` are node ids, with or without the id of a parameter."""

    tests: tuple[str, ...]
    why: str
    held_by: tuple[str, ...]


class Table(NamedTuple):
    """All that runs by night beyond what a test itself marks.

    ``rows`` are left to other tests; ``kept`` has, of a test with parameters, the ids that each run tries.
    """

    rows: tuple[Night, ...]
    kept: Mapping[str, tuple[str, ...]]


@functools.cache
def table() -> Table:
    """What the file says. Raises ``KeyError`` where a row lacks something."""
    said = tomllib.loads(_FILE.read_text())
    rows = tuple(Night(tuple(row["tests"]), row["why"], tuple(row["held_by"])) for row in said["rows"])
    return Table(rows, {test: tuple(ids) for test, ids in said["kept"].items()})


def is_by_night(id: str) -> bool:
    """Return whether the test with this node id is left out by day."""
    test, is_parametrized, parameters = id.partition("[")
    kept = table().kept.get(test)
    if is_parametrized and kept is not None and not any(fits(parameters.removesuffix("]"), one) for one in kept):
        return True
    return not _left_to_others().isdisjoint((id, test))


def mark(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """Mark those of ``items`` that run by night, and keep what was found in ``config``."""
    found = config.stash[COLLECTED] = {}
    for item in items:
        if is_by_night(item.nodeid):
            item.add_marker(pytest.mark.nightly)
        found[item.nodeid] = item.get_closest_marker("nightly") is not None


def fits(parameters: str, kept: str) -> bool:
    """Return whether the id ``parameters`` is ``kept``, of which a ``*`` at the end stands for anything."""
    return parameters.startswith(kept[:-1]) if kept.endswith("*") else parameters == kept


@functools.cache
def _left_to_others() -> frozenset[str]:
    return frozenset(test for row in table().rows for test in row.tests)
