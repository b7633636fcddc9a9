"""The page of what tests run when, from ``tests/by_night.toml``."""

import re

from tests import by_night

HEAD = """# Which tests run when

`make test` runs what each kind of behaviour needs: of every promise, route, family, shape and engine at least one test. What repeats
it with further values, or holds what others hold as well and takes long, is marked `nightly`: `make test-nightly` runs that, and
`make test-vllm VLLM_MARKS=vllm` does for tests that need vLLM.

A test is marked where it stands (`tests/nightly.py`), or by `tests/by_night.toml`, from which this page is written, by
`python -m tests.pages`. A row of it names the tests that hold the behaviour by day, and `tests/contract/test_by_night.py` holds that they
are there and run. Put a test there when it takes more than about ten seconds and fails only together with others.
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
    head = ["## By night only", "", "| test | why | held each time by |", "|---|---|---|"]
    return "\n".join([HEAD, *head, *rows, "", "## Fewer values by day", "", KEPT, *kept, ""])


def _listed(tests: tuple[str, ...]) -> str:
    return "<br>".join(map(_short, tests))


def _short(test: str) -> str:
    """A node id without what all have."""
    path, _, name = test.removeprefix("tests/").partition("::")
    return f"{_code(path)}: {_words(name)}"


def _words(name: str) -> str:
    """The sentence that a test's name is, and its parameters."""
    test, is_parametrized, parameters = name.partition("[")
    words = test.removeprefix("test_").replace("_", " ")
    return f"{words} ({_code(parameters.removesuffix(']'))})" if is_parametrized else words


def _code(text: str) -> str:
    return f"`{re.sub(r'[|]', '/', text)}`" if text else "none"
