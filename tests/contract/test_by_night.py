"""Tests that run by night only have stand-ins by day: ``tests/by_night.toml``.

Whole runs check the names, for the files that a run collects.
"""

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests import by_night
from tests.by_night import is_by_night, table

ROOT = Path(__file__).parents[2]
LEFT_OUT = sorted({test for row in table().rows for test in row.tests})
HELD_BY = sorted({test for row in table().rows for test in row.held_by})
NAMED = sorted({*LEFT_OUT, *HELD_BY, *table().kept})


class Collected:
    """Every test that this run found, with whether it runs by night.

    The run records them before it deselects any.
    """

    def __init__(self, found: dict[str, bool]) -> None:
        self.found = found
        self._files = {id.partition("::")[0] for id in found}

    def known(self, tests: Iterable[str]) -> list[str]:
        """Return the ``tests`` whose files were collected, or skip if none was."""
        return [test for test in tests if test.partition("::")[0] in self._files] or pytest.skip("no file of the table")

    def those(self, test: str) -> list[str]:
        """Ids of ``test``, with each of its parameters."""
        return [id for id in self.found if test in (id, id.partition("[")[0])]


@pytest.fixture
def collected(request: pytest.FixtureRequest) -> Collected:
    return Collected(request.config.stash[by_night.COLLECTED])


@pytest.mark.parametrize("path", sorted({test.partition("::")[0] for test in NAMED}))
def test_a_file_has_the_tests_that_are_named(path: str):
    text = (ROOT / path).read_text()
    names = {test.partition("::")[2].partition("[")[0] for test in NAMED if test.startswith(f"{path}::")}

    assert {name for name in names if f"def {name}(" not in text} == set()


def test_a_row_says_why_and_is_held_by_others_than_its_own():
    assert [row for row in table().rows if not (row.tests and row.why and row.held_by)] == []
    assert [test for test in HELD_BY if is_by_night(test)] == []


def test_every_test_that_is_named_is_collected(collected: Collected):
    assert [test for test in collected.known(NAMED) if not collected.those(test)] == []


def test_what_holds_others_runs_by_day(collected: Collected):
    assert [test for test in collected.known(HELD_BY) if all(collected.found[id] for id in collected.those(test))] == []


def test_every_parameter_that_is_kept_exists_and_others_are_left_out(collected: Collected):
    for test in collected.known(table().kept):
        found = [id.partition("[")[2].removesuffix("]") for id in collected.those(test)]
        by_day = [each for each in found if not is_by_night(f"{test}[{each}]")]

        assert [kept for kept in table().kept[test] if not any(by_night.fits(each, kept) for each in found)] == [], test
        assert 0 < len(by_day) < len(found), test
