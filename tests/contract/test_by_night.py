"""Tests that run by night only have stand-ins by day: ``tests/by_night.toml``.

Whole runs check the names, for the files that a run collects.
"""

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests import by_night
from tests.by_night import is_by_night, read_table

ROOT = Path(__file__).parents[2]
LEFT_OUT = sorted({test for row in read_table().rows for test in row.tests})
HELD_BY = sorted({test for row in read_table().rows for test in row.held_by})
NAMED = sorted({*LEFT_OUT, *HELD_BY, *read_table().kept})


class Collected:
    """Every test that this run found, with whether it runs by night.

    The run records them before it deselects any.
    """

    def __init__(self, tests: dict[str, bool]) -> None:
        self.found = tests
        self._files = {id.partition("::")[0] for id in tests}

    def select_known(self, tests: Iterable[str]) -> list[str]:
        """Return the ``tests`` whose files were collected, or skip if none was."""
        return [test for test in tests if test.partition("::")[0] in self._files] or pytest.skip("no file of the table")

    def ids_of(self, test: str) -> list[str]:
        """Ids of ``test``, with each of its parameters."""
        return [id for id in self.found if test in (id, id.partition("[")[0])]


@pytest.fixture
def collection(request: pytest.FixtureRequest) -> Collected:
    return Collected(request.config.stash[by_night.COLLECTED])


@pytest.mark.parametrize("path", sorted({test.partition("::")[0] for test in NAMED}))
def test_a_file_has_the_tests_that_are_named(path: str):
    text = (ROOT / path).read_text()
    names = {test.partition("::")[2].partition("[")[0] for test in NAMED if test.startswith(f"{path}::")}

    assert {name for name in names if f"def {name}(" not in text} == set()


def test_a_row_says_why_and_is_held_by_others_than_its_own():
    assert [row for row in read_table().rows if not (row.tests and row.why and row.held_by)] == []
    assert [test for test in HELD_BY if is_by_night(test)] == []


def test_every_test_that_is_named_is_collected(collection: Collected):
    assert [test for test in collection.select_known(NAMED) if not collection.ids_of(test)] == []


def test_what_holds_others_runs_by_day(collection: Collected):
    assert [
        test for test in collection.select_known(HELD_BY) if all(collection.found[id] for id in collection.ids_of(test))
    ] == []


def test_every_parameter_that_is_kept_exists_and_others_are_left_out(collection: Collected):
    for test in collection.select_known(read_table().kept):
        parameters = [id.partition("[")[2].removesuffix("]") for id in collection.ids_of(test)]
        by_day = [each for each in parameters if not is_by_night(f"{test}[{each}]")]

        assert [
            pattern
            for pattern in read_table().kept[test]
            if not any(by_night.fits_pattern(each, pattern) for each in parameters)
        ] == [], test
        assert 0 < len(by_day) < len(parameters), test
