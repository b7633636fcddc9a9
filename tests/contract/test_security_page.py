"""The page of threats names an existing test for each rule."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text()
RULES = [line for line in PAGE.partition("## Rules and their tests")[2].splitlines() if line.startswith("| ")][1:]
#: Rows of the table of tenant limits.
LIMITS = [
    line
    for line in PAGE.partition("## Limits of a tenant")[2].partition("\n## ")[0].splitlines()
    if line.startswith("| ")
][1:]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@cache
def list_functions(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("row", [*RULES, *LIMITS], ids=lambda row: row[2:50].strip())
def test_a_rule_has_tests_that_are_there(row: str):
    test_names = NAMED.findall(row)

    assert test_names
    for path, name in test_names:
        assert name in list_functions(path), f"{path} has no {name}"


def test_each_limit_of_a_tenant_says_whose_it_is_and_what_the_next_request_gets():
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in LIMITS]

    assert len(LIMITS) >= 15
    assert all(len(row) == 5 and all(row) for row in cells)
    assert len({row[0] for row in cells}) == len(cells)


def test_the_page_has_rules():
    assert len(RULES) >= 30
    assert len({NAMED.sub("", row) for row in RULES}) == len(RULES)
