"""The parts of a run have each test once, and about as many tests each."""

import argparse
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.parts import RunPart, choose_groups, parse_part

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_parts_have_each_group_once_and_about_as_many_tests(count: int):
    groups = [f"group {number}" for number in range(40) for _ in range(1 + number % 9)]
    sizes = Counter(groups)

    chosen = [choose_groups(RunPart(number, count), groups) for number in range(1, count + 1)]

    assert sorted(name for each in chosen for name in each) == sorted(sizes)
    tests = [sum(sizes[name] for name in each) for each in chosen]
    assert max(tests) - min(tests) <= max(sizes.values())


@pytest.mark.parametrize("text", ["", "2", "0/3", "4/3", "1/x", "/3", "1/0"])
def test_a_part_that_is_none_is_refused_with_its_form(text: str):
    with pytest.raises(argparse.ArgumentTypeError, match="NUMBER/COUNT"):
        parse_part(text)


def test_a_run_of_both_parts_has_all_tests():
    def list_tests(*arguments: str) -> set[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
        collected = subprocess.run(
            [*command, "tests/unit/tensors", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return {line for line in collected.stdout.splitlines() if line.startswith("tests/")}

    first, second, whole = list_tests("--part", "1/2"), list_tests("--part", "2/2"), list_tests()

    assert first
    assert second
    assert not first & second
    assert first | second == whole
