"""The page of test schedules, from ``tests/slow.toml`` and ``tests/by_night.toml``."""

import re

from tests import by_night, covered, slow

HEAD = """# Which tests run when

| command | tests |
|---|---|
| `make test` | every package, and each way to use a system once: ten to twenty minutes on two cores |
| `make test-slow` | other systems and their failures, and tests that take seconds |
| `make test-all` | both in one; `.ci/run` runs one after the other |
| `make test-nightly` | further values of the same tests, and tests that repeat others |
| `make test-vllm VLLM_MARKS=vllm` | the same for tests that need vLLM |

**Slow.** `tests/slow.toml` lists slow tests, and `tests/slow.py` marks them `slow`. Tests of a system (`tests/e2e`, `tests/nodes`,
`tests/chaos`) are slow, except those below. Of other packages, the file lists tests of two seconds or more.
`tests/contract/test_slow.py` checks that each way below is tested, that every package has tests in `make test`, and that each test
runs in one of the two commands. `python -m tests.mutations` seeds faults that `make test` must detect.

**Nightly.** Every promise, route, family, shape and engine has at least one test by day. Tests with further values, and long tests
that repeat others, run at night. Mark a test in its file (`tests/nightly.py`) or in `tests/by_night.toml`, where each row names the
tests that cover the behaviour by day. `tests/contract/test_by_night.py` checks that these exist and run. Add a test if it takes
more than about ten seconds and fails only together with others.

`python -m tests.pages` generates this page from both files.
"""
WAYS = """All tests of {}.

| way to use a system | test |
|---|---|"""
COVERAGE = """Executed lines and branches of `services` and `shared`, by package, measured by `make coverage`: test processes and those that
they fork or spawn, unless these are killed. Code for vLLM, a GPU, a browser or Docker counts only if these are installed.
`make coverage MARKS='$(ALL_MARKS) and slow' ADD=1` adds `make test-slow` to an earlier measurement;
`NAME="make test-all"` stores the figures for this page.
"""
KEPT = """By day these tests run with the listed parameters only, at night with all:

| test | by day |
|---|---|"""


def page() -> str:
    table = by_night.table()
    rows = [
        f"| {_listed(row.tests)} | {row.why} | {_listed(row.held_by)} |"
        for row in sorted(table.rows, key=lambda row: row.tests)
    ]
    kept = [f"| {_short(test)} | {', '.join(map(_code, ids))} |" for test, ids in sorted(table.kept.items())]
    systems = slow.table()
    ways = [f"| {way} | {_short(test)} |" for way, test in systems.paths.items()]
    ways = ["## Systems in `make test`", "", WAYS.format(", ".join(map(_place, systems.short))), *ways, ""]
    head = ["## By night only", "", "| test | reason | covered by day by |", "|---|---|---|"]
    return "\n".join([HEAD, *ways, *_coverage(), *head, *rows, "", "## Fewer values by day", "", KEPT, *kept, ""])


def _coverage() -> list[str]:
    """Stored coverage figures, a table for each run."""
    kept = covered.kept()
    tables = [
        [f"{name}, {run['date']}:", "", "| package | lines | branches |", "|---|---|---|"]
        + [
            f"| {room if room == 'all' else _code(room)} | {covered.row(counts)} |"
            for room, counts in run["rooms"].items()
        ]
        + [""]
        for name, run in kept.items()
    ]
    return ["## Coverage", "", COVERAGE, *(line for table in tables for line in table)] if kept else []


def _listed(tests: tuple[str, ...]) -> str:
    return "<br>".join(map(_short, tests))


def _short(test: str) -> str:
    """A node id without the common prefix."""
    path, _, name = test.removeprefix("tests/").partition("::")
    return f"{_code(path)}: {_words(name)}"


def _place(short: str) -> str:
    return _code(short.removeprefix("tests/"))


def _words(name: str) -> str:
    """The sentence that a test's name is, and its parameters."""
    test, is_parametrized, parameters = name.partition("[")
    words = test.removeprefix("test_").replace("_", " ")
    return f"{words} ({_code(parameters.removesuffix(']'))})" if is_parametrized else words


def _code(text: str) -> str:
    return f"`{re.sub(r'[|]', '/', text)}`" if text else "none"
