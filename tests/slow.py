"""Tests that ``make test`` leaves to ``make test-slow``: ``slow.toml``.

``python -m tests.slow`` prints the directories and files that have any, so pytest need not collect the others.
"""

import functools
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

_FILE = Path(__file__).with_suffix(".toml")
#: Directories whose tests run whole systems: slow, but for those that the table names.
SYSTEMS = ("tests/e2e/", "tests/nodes/", "tests/chaos/")


class SlowTable(NamedTuple):
    """The content of the file.

    ``short`` lists the directories and files of systems that ``make test`` runs. ``paths`` lists a test of each way to
    use a system. ``slow`` lists the names of tests by the files of other rooms.
    """

    short: tuple[str, ...]
    paths: Mapping[str, str]
    slow: Mapping[str, tuple[str, ...]]


@functools.cache
def read_table() -> SlowTable:
    """Read the file. Raises ``KeyError`` for a missing part."""
    read = tomllib.loads(_FILE.read_text())
    return SlowTable(tuple(read["short"]), read["paths"], {file: tuple(names) for file, names in read["slow"].items()})


def is_slow(id: str) -> bool:
    """Return True if ``make test-slow`` runs the test with this node id."""
    path, _, name = id.partition("::")
    if id.startswith(SYSTEMS):
        return not any(path == short or path.startswith(f"{short}/") for short in read_table().short)
    return name.partition("[")[0] in read_table().slow.get(path, ())


def mark_items(items: Iterable[pytest.Item]) -> None:
    """Mark the ``items`` that are slow by the table."""
    for item in items:
        if is_slow(item.nodeid):
            item.add_marker(pytest.mark.slow)


if __name__ == "__main__":
    print(*SYSTEMS, *read_table().slow)
