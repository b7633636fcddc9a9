"""The page of surprising behaviours of libraries, formats and clients.

It is generated from the tests that show them.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
HEAD = """# Behaviours

Libraries, formats and clients sometimes behave otherwise than an engineer would expect. Each row names one such behaviour,
what Omnibus does about it, and the test that shows it. What has nothing to do with Omnibus is in
[findings](../findings/README.md): scripts that show the behaviour alone.

This page is made from the marker `behaviour` of tests, by `python -m tests.pages`.

| of | behaviour | Omnibus | source | test |
|---|---|---|---|---|
"""


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
    return HEAD + "".join(
        map(_format_row, sorted(read_behaviours(), key=lambda each: (each.subject.lower(), each.does)))
    )


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
    cells = [each.subject, each.does, each.omnibus, each.source, f"[{name}](../{file})"]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
