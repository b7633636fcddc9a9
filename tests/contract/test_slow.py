"""``make test`` covers every room and way to use a system: ``tests/slow.toml``.

``make test-slow`` runs all other tests.
"""

import functools
import re
import subprocess
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from tests import mutations
from tests.slow import SYSTEMS, is_slow, read_table

ROOT = Path(__file__).parents[2]
#: Marks by which tests are left out, whichever command runs; those of ``make test-vllm`` and ``make test-clients`` among them.
LEFT_OUT = ("bench", "nightly", "vllm", "clients")


@functools.cache
def marks_of(target: str) -> Expression:
    """Tests that a Makefile target selects on a fully equipped machine."""
    command = ["make", "-n", target, "BROWSER=/bin/true", "VENV=/nowhere"]
    commands = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (expression,) = re.findall(r'-m pytest -m "([^"]+)"', commands)
    return Expression.compile(re.sub(" and not (ucx|llama_cpp|real)", "", expression))


def names_of(path: str) -> set[str]:
    return set(re.findall(r"^(?:async )?def (test_\w+)\(", (ROOT / path).read_text(), re.MULTILINE))


@pytest.mark.parametrize("path", sorted(read_table().slow))
def test_a_file_has_the_tests_that_are_named(path: str):
    assert set(read_table().slow[path]) - names_of(path) == set()
    assert not path.startswith(SYSTEMS), "tests of systems are slow, or short by whole files"


@pytest.mark.parametrize("test", read_table().paths.values(), ids=read_table().paths)
def test_each_way_to_use_a_system_is_tested_by_make_test(test: str):
    path, _, name = test.partition("::")

    assert name in names_of(path)
    assert not is_slow(test)


@pytest.mark.parametrize("short", read_table().short)
def test_no_system_is_started_for_both(short: str):
    """Directories share a system by their ``conftest.py``; files of families name theirs."""
    place = ROOT / short
    conftest = place.parent / "conftest.py"

    assert place.exists()
    assert place.is_dir() or place.parent == ROOT / "tests/e2e" or not conftest.exists(), f"name {place.parent}"


def test_every_room_has_tests_that_make_test_runs():
    in_short: dict[Path, bool] = {}
    for path in (ROOT / "tests/unit").rglob("test_*.py"):
        tests = [f"{path.relative_to(ROOT)}::{name}" for name in names_of(str(path))]
        in_short[path.parent] = in_short.get(path.parent, False) or not all(map(is_slow, tests))

    assert [room for room, runs in in_short.items() if not runs] == []


def test_no_marker_contradicts_the_table():
    """No marker contradicts the table for a file with only slow tests."""
    files = [path for path in (ROOT / "tests").rglob("*.py") if ROOT / "tests/vllm" not in path.parents]
    marked_paths = [
        str(path.relative_to(ROOT)) for path in files if re.search(r"pytest\.mark\.slow(?!\))", path.read_text())
    ]

    assert [path for path in marked_paths if not (path.startswith(SYSTEMS) and is_slow(f"{path}::test"))] == []


@pytest.mark.parametrize("left_out", [None, *LEFT_OUT])
@pytest.mark.parametrize("is_slow_one", [False, True])
def test_every_test_runs_in_one_of_both_unless_both_leave_it_out(left_out: str | None, is_slow_one: bool):
    marks = {left_out, "slow"} if is_slow_one else {left_out}

    short, rest, whole = (marks_of(target).evaluate(marks.__contains__) for target in ("test", "test-slow", "test-all"))

    runs = left_out is None
    assert (short, rest, whole) == (runs and not is_slow_one, runs and is_slow_one, runs)


def test_continuous_integration_runs_both():
    targets = re.findall(r"\bstep \S+ test_target \d+ (\S+)", (ROOT / ".ci/run").read_text(), re.MULTILINE)

    assert {"test", "test-slow"} <= set(targets)


def test_continuous_integration_installs_clients_of_others_and_runs_their_tests():
    script = (ROOT / ".ci/run").read_text()

    steps = re.findall(r"^(?:beside|join|step) \S*clients\b.*", script, re.MULTILINE)
    assert steps == [
        "beside clients install_clients",
        "join clients",
        "beside test-clients test_clients",
        "join test-clients",
    ]


def test_seeded_faults_are_looked_for_by_what_make_test_runs():
    assert "not slow" in mutations.short_marks()
