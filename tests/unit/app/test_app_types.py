"""Type checkers on the examples, the documentation's code, and wrong apps.

Both checkers see ``omnibus`` as an installed package, in their strict modes, without a plugin.
"""

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from omnibus.task import ChatInput, Think, record, tasks_of, use
from tests.unit.app.typed_programs import FORMER, MISTAKES, READS
from tests.unit.task.memory import Memory

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted([*(ROOT / "examples").glob("*.py"), *(ROOT / "examples" / "real").glob("[a-z]*.py")])
PAGES = (ROOT / "README.md", ROOT / "docs" / "apps.md")
PROGRAMS = {"reads": READS, "mistakes": MISTAKES, "former": FORMER}
#: Annotations whose values are one class at run time.
RESULTS = dict.fromkeys(("Tensor", "Stream", "Value"), "Result")
BLOCK = re.compile(r"^```py(?:thon)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: A configuration separate from this repository's, which has other options.
CACHE = ROOT / ".mypy_cache" / "apps"
CHECKERS = ("mypy", "pyright")

pytestmark = pytest.mark.timeout(900)  # on a new machine both checkers start with empty caches


class Finding(NamedTuple):
    """A message of a checker: an error, or a type that it reveals."""

    file: str
    line: int
    error: bool
    text: str


class Findings(NamedTuple):
    mypy: list[Finding]
    pyright: list[Finding]

    def list_errors(self, checker: str, file: str) -> list[Finding]:
        return [finding for finding in getattr(self, checker) if finding.error and finding.file == file]

    def revealed_types(self, checker: str, file: str) -> dict[int, str]:
        """Return the revealed types by line, shortened to their last parts."""
        notes = [finding for finding in getattr(self, checker) if not finding.error and finding.file == file]
        types = {found.line: re.search(r'(?:Revealed type|^Type of .*) is "(.*)"$', found.text) for found in notes}
        return {line: re.sub(r"(\w+\.)+(?=\w)", "", match[1]) for line, match in types.items() if match}


def page_modules(page: Path) -> Iterator[str]:
    """Yield the code blocks of ``page`` as modules with unchanged line numbers.

    Each block continues the ones before it; a block with a ``serve`` is a separate app.
    """
    text, shared_blocks = page.read_text(), []
    for block in BLOCK.finditer(text):
        names = {node.name for node in ast.parse(block[1]).body if isinstance(node, ast.AsyncFunctionDef)}
        if "serve" in names:
            yield only_blocks(text, [*shared_blocks, block])
        elif "from my_app import" in block[1]:  # a file of its own
            yield only_blocks(text, [block])
        else:
            shared_blocks.append(block)
    yield only_blocks(text, shared_blocks)


def only_blocks(text: str, blocks: list[re.Match[str]]) -> str:
    """Return ``text`` with every line outside ``blocks`` emptied."""
    lines = ["" for _ in text.splitlines()]
    for block in blocks:
        first, code = text.count("\n", 0, block.start(1)), block[1].splitlines()
        lines[first : first + len(code)] = code
    return "\n".join(lines) + "\n"


DOCUMENTED = {f"{page.stem.lower()}_{at}": code for page in PAGES for at, code in enumerate(page_modules(page))}
CORRECT = [*(path.stem for path in EXAMPLES), *DOCUMENTED, "reads", "former"]


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """All findings of both checkers, each run once."""
    here = tmp_path_factory.mktemp("typed")
    for path in EXAMPLES:
        shutil.copy(path, here)
    my_app = next(code for code in DOCUMENTED.values() if "serve(request: Question) -> Answer" in code)
    for name, code in {**DOCUMENTED, **PROGRAMS, "my_app": my_app}.items():
        (here / f"{name}.py").write_text(code)
    (here / "mypy.ini").write_text("[mypy]\nstrict = true\n")
    (here / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict", "pythonVersion": "3.11"}')
    mypy = run_checker(here, "mypy", "--cache-dir", str(CACHE), "--output", "json", ".")
    pyright = run_checker(here, "pyright", "--outputjson", "--pythonpath", sys.executable, ".")
    return Findings(list(mypy_findings(mypy)), list(pyright_findings(pyright)))


def run_checker(here: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "shared"), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    process = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=here,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert process.returncode == 1, process.stderr  # each mistake is found
    return process.stdout


def mypy_findings(output: str) -> Iterator[Finding]:
    for message in map(json.loads, output.splitlines()):
        yield Finding(Path(message["file"]).stem, message["line"], message["severity"] == "error", message["message"])


def pyright_findings(output: str) -> Iterator[Finding]:
    for diagnostic in json.loads(output)["generalDiagnostics"]:
        line = diagnostic["range"]["start"]["line"] + 1
        yield Finding(Path(diagnostic["file"]).stem, line, diagnostic["severity"] == "error", diagnostic["message"])


def marked_lines(code: str, mark: str) -> dict[int, str]:
    """The lines of ``code`` that match ``mark``, with its group."""
    matches = ((at, re.search(mark, line)) for at, line in enumerate(code.splitlines(), 1))
    return {at: match[1] for at, match in matches if match}


@pytest.mark.parametrize("name", CORRECT)
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_correct_app_has_no_errors(findings: Findings, checker: str, name: str):
    assert findings.list_errors(checker, name) == []


def test_pages_have_code_and_all_of_it_is_checked():
    for page in PAGES:
        modules = [code for name, code in DOCUMENTED.items() if name.startswith(page.stem.lower())]
        lines = {line for block in BLOCK.findall(page.read_text()) for line in block.splitlines()}
        assert lines
        assert lines <= {line for code in modules for line in code.splitlines()}


@pytest.mark.parametrize("checker", CHECKERS)
def test_results_have_exact_types(findings: Findings, checker: str):
    assert findings.revealed_types(checker, "reads") == marked_lines(READS, r"reveal_type\(.*\)  # (.*)$")


@pytest.mark.parametrize("checker", CHECKERS)
def test_each_mistake_is_reported_at_its_line_and_nothing_else(findings: Findings, checker: str):
    assert {finding.line for finding in findings.list_errors(checker, "mistakes")} == set(
        marked_lines(MISTAKES, r"# (mistake)$")
    )


async def test_results_are_at_run_time_what_their_types_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    module, type_names = load_program(tmp_path, "reads", monkeypatch), dict[int, set[str]]()
    monkeypatch.setattr(
        module,
        "reveal_type",
        lambda value: type_names.setdefault(sys._getframe(1).f_lineno, set()).add(type(value).__name__),
    )

    with use(Memory(module.ALBUM, module.PAIR)):
        assert [part async for part in module.serve("a boat")] != []

    library = READS[: READS.index("async def read_library")].count("\n")
    types = {line: text for line, text in marked_lines(READS, r"reveal_type\(.*\)  # (\w+)").items() if line <= library}
    assert type_names == {line: {RESULTS.get(text, text)} for line, text in types.items()}


async def test_apps_without_types_run_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    module = load_program(tmp_path, "former", monkeypatch)

    segment = record(module.FORMER.invoke, ChatInput.of("hi"))

    assert [node.task for node in segment.nodes] == ["think-qwen3-tiny-thinker"]
    assert tasks_of(module.Awaiting()) == tasks_of(module.FORMER) == [Think(model="qwen3-tiny", component="thinker")]


def load_program(directory: Path, name: str, patch: pytest.MonkeyPatch) -> Any:
    file = directory / f"{name}.py"
    file.write_text(PROGRAMS[name])
    spec = importlib.util.spec_from_file_location(f"typed_{name}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    patch.setitem(sys.modules, module.__name__, module)
    spec.loader.exec_module(module)
    return module
