"""The table of surprising behaviours of libraries, formats and clients in ``docs/dependencies.md``.

It is generated from the tests that show them.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "dependencies.md"
BEGIN, END = "<!-- behaviours: made by python -m tests.pages -->", "<!-- /behaviours -->"
HEAD = "| of | behaviour | Omnibus | test |\n|---|---|---|---|\n"


class Behaviour(NamedTuple):
    """One marker: library, version, behaviours, and source.

    The behaviours are the library's and that of Omnibus.
    """

    subject: str
    does: str
    omnibus: str
    source: str
    test: str


def make_page() -> str:
    """Return ``docs/dependencies.md`` with the current table."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, tail = rest.partition(END)
    rows = "".join(map(_format_row, sorted(read_behaviours(), key=lambda each: (each.subject.lower(), each.does))))
    return f"{head}{BEGIN}\n\n{HEAD}{rows}\n{END}{tail}"


def read_behaviours() -> Iterator[Behaviour]:
    """Behaviours from all tests. Raises ``ValueError`` for markers with computed texts."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text = file.read_text()
        if "mark.behaviour(" in text:
            yield from _behaviours_of(file, ast.parse(text))


def _behaviours_of(file: Path, module: ast.Module) -> Iterator[Behaviour]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.behaviour":
                    values = [*mark.args, *(keyword.value for keyword in mark.keywords)]
                    texts = [ast.literal_eval(value) for value in values]
                    yield Behaviour(*texts, test=f"{file.relative_to(ROOT)}::{node.name}")


def _format_row(each: Behaviour) -> str:
    file, name = each.test.split("::")
    cells = [each.subject, each.does, each.omnibus, f"[{name}](../{file})"]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
