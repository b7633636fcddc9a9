"""``tests/README.md``, the schedule of tests, from ``tests/slow.toml`` and ``tests/by_night.toml``."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests import by_night, covered, slow

HEAD = """# Tests

| command | tests |
|---|---|
| `make test` | every package, and each way to use a system once: ten to twenty minutes on two cores |
| `make test-slow` | other systems and their failures, and tests that take seconds |
| `make test-all` | both in one; `.ci/run` runs the first, and a third of the second, which the commit chooses (`tests/parts.py`) |
| `make test-nightly` | further values of the same tests, and tests that repeat others |
| `make test-vllm VLLM_MARKS=vllm` | the same for tests that need vLLM |

**Slow.** `tests/slow.toml` lists slow tests, and `tests/slow.py` marks them `slow`. Tests of a system (`tests/e2e`,
`tests/nodes`, `tests/chaos`) are slow, except those below. In other packages, list tests that take two seconds or more
(`make test ARGS=--durations=20` shows them). `tests/contract/test_slow.py` checks that `make test` has tests of every
package and every row below.

**Nightly.** Every promise, route, family, shape and engine has a test by day. Further values, and long tests that repeat
others, run at night. Mark a test in its file (`tests/nightly.py`), or list it in `tests/by_night.toml` if it takes more
than about ten seconds and fails only together with others. `held_by` names the tests that cover the behaviour by day, and
`kept` the parameters that run by day. `tests/contract/test_by_night.py` checks that these exist and run.

`python -m tests.pages` writes this page from both files.
"""
WAYS = """All tests of {}.

| way to use a system | test |
|---|---|"""
COVERAGE = """Executed lines and branches of `services` and `shared`, by package, measured by `make coverage`. Processes that tests fork or
spawn count, unless they are killed. Code for vLLM, a GPU, a browser or Docker counts only if these are installed.
`make coverage MARKS='$(ALL_MARKS) and slow' ADD=1` adds `make test-slow` to an earlier measurement;
`NAME="make test-all"` stores the figures for this page.
"""
NIGHT = ["## By night only", "", "| tests of | reason |", "|---|---|"]
_COUNTS = (("covered_lines", "num_statements"), ("covered_branches", "num_branches"))


def make_page() -> str:
    rows = [
        f"| {_list_files(row.tests)} | {row.why} |"
        for row in sorted(by_night.read_table().rows, key=lambda row: row.tests)
    ]
    systems = slow.read_table()
    ways = [f"| {way} | {_list_files((test,))} |" for way, test in systems.paths.items()]
    ways = ["## Systems in `make test`", "", WAYS.format(", ".join(map(_format_place, systems.short))), *ways, ""]
    return "\n".join([HEAD, *ways, *_format_coverage(), *NIGHT, *rows, ""])


def _format_coverage() -> list[str]:
    """Figures of coverage, with lines and branches of each run as columns."""
    runs = covered.read_figures()
    heads = [f"{name}, {run['date']}: {part}" for name, run in runs.items() for part in ("lines", "branches")]
    packages = dict.fromkeys(package for run in runs.values() for package in run["rooms"])
    rows = [
        " | ".join([package if package == "all" else _format_code(package), *_format_shares(runs.values(), package)])
        for package in packages
    ]
    table = [f"| {row} |" for row in (" | ".join(["package", *heads]), *rows)]
    table.insert(1, "|---" * (len(heads) + 1) + "|")
    return ["## Coverage", "", COVERAGE, *table, ""] if runs else []


def _format_shares(runs: Iterable[Mapping[str, Any]], package: str) -> Iterator[str]:
    for run in runs:
        counts = run["rooms"].get(package)
        for part, whole in _COUNTS:
            yield covered.format_share(counts, part, whole) if counts else "–"


def _list_files(tests: Iterable[str]) -> str:
    """The files of node ids, each once."""
    return ", ".join(dict.fromkeys(_format_place(test.partition("::")[0]) for test in tests))


def _format_place(short: str) -> str:
    return _format_code(short.removeprefix("tests/"))


def _format_code(text: str) -> str:
    return f"`{text}`"
