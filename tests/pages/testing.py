"""The page of what tests run when, from ``tests/slow.toml`` and ``tests/by_night.toml``."""

import re

from tests import by_night, covered, slow

HEAD = """# Which tests run when

| command | tests |
|---|---|
| `make test` | every room, and each way to use a system once: ten to twenty minutes on two cores |
| `make test-slow` | the other systems and what breaks them, and tests that take seconds |
| `make test-all` | both in one; `.ci/run` runs one after the other |
| `make test-nightly` | further values of the same tests, and what others hold as well |

`tests/slow.toml` says what is slow, and `tests/slow.py` sets the marker `slow` by it. Every test of a system (`tests/e2e`, `tests/nodes`,
`tests/chaos`) is slow, but for the directories and files below; of other rooms, the file names tests that take two seconds or more.
`tests/contract/test_slow.py` holds that each way below is tested, that every room has tests in `make test`, and that each test runs
in one of the two commands. `python -m tests.mutations` seeds faults, and what `make test` runs has to notice them.

Of both together: of every promise, route, family, shape and engine there is at least one test. What repeats it with further values, or
holds what others hold as well and takes long, is marked `nightly`: `make test-nightly` runs that, and
`make test-vllm VLLM_MARKS=vllm` does for tests that need vLLM. A test is marked where it stands (`tests/nightly.py`), or by
`tests/by_night.toml`. A row of it names the tests that hold the behaviour by day, and `tests/contract/test_by_night.py` holds that they
are there and run. Put a test there when it takes more than about ten seconds and fails only together with others.

This page is written from both files, by `python -m tests.pages`.
"""
WAYS = """All tests of {}.

| way to use a system | test |
|---|---|"""
COVERAGE = """Lines and branches of `services` and `shared` that run, by room, as `make coverage` measures them: in the processes of tests, and
in those that they fork or spawn unless these are killed. A process counts by what it wrote when it ended. What needs vLLM, a GPU,
a browser or Docker counts only where these are there. `make coverage MARKS='$(ALL_MARKS) and slow' ADD=1` adds what
`make test-slow` runs to what was measured before, and `NAME="make test-all"` keeps the figures for this page.
"""
KEPT = """Of these each run tries some parameters, all come by night:

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
    head = ["## By night only", "", "| test | why | held each time by |", "|---|---|---|"]
    return "\n".join([HEAD, *ways, *_coverage(), *head, *rows, "", "## Fewer values by day", "", KEPT, *kept, ""])


def _coverage() -> list[str]:
    """The figures of coverage that were kept, a table for each run."""
    kept = covered.kept()
    tables = [
        [f"{name}, {run['date']}:", "", "| room | lines | branches |", "|---|---|---|"]
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
    """A node id without what all have."""
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
