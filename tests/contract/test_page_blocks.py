"""Code blocks of pages are valid: commands, code and data.

Other tests check that the blocks do what pages describe. This test covers all pages, and runs nothing.
"""

import argparse
import ast
import importlib
import json
import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from omnibus.cli.main import _build_parser

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "examples").rglob("*.md")),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
#: A command of ours in a line of a shell, up to what the shell does with its output.
TYPED = re.compile(r"(?:^|[\s(])(?:\.venv/bin/)?omnibus (?!deploy/)([^|;&>)#]*)")
SPOKEN = re.compile(r"`(?:\.venv/bin/)?omnibus ([^`|;&>)#]*)")
#: Commands that pages name as mistakes, or as the form of all of them.
NOT_MEANT = {("docs/errors.md", "shwo"), ("docs/commands.md", "COMMAND --help")}
SHELLS = ("", "sh", "bash")
#: This page has signatures, without the bodies that python wants.
WITHOUT_BODIES = {"docs/tasks.md"}


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    return _build_parser()


def test_every_command_and_option_exists(parser: argparse.ArgumentParser):
    results = [(name_of(page), unknown_word(parser, command)) for page in PAGES for command in find_commands(page)]

    assert len(results) > 200
    assert [(page, fault) for page, fault in results if fault] == []


def test_every_make_target_exists():
    targets = set(re.findall(r"^([a-z][a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    mentions = {(name_of(page), target) for page in PAGES for target in make_targets(page)}

    assert mentions
    assert [each for each in sorted(mentions) if each[1] not in targets] == []


def test_python_can_be_parsed_and_imports_what_there_is():
    for page in PAGES:
        for code in code_blocks(page, "python", "py") if name_of(page) not in WITHOUT_BODIES else ():
            tree = ast.parse(code, name_of(page))
            missing = [f"{module}.{name}" for module, name in list_imports(tree) if not name_exists(module, name)]
            assert missing == [], name_of(page)


def test_data_can_be_read():
    for page in PAGES:
        for text in code_blocks(page, "json"):
            whole = text if text.lstrip().startswith(("{", "[")) else f"{{{text.rstrip().rstrip(',')}}}"
            assert json.loads(whole), name_of(page)
        for text in code_blocks(page, "yaml"):
            assert yaml.safe_load(text), name_of(page)


def test_what_is_wrong_would_be_found(parser: argparse.ArgumentParser):
    assert unknown_word(parser, "paln show") == "omnibus paln show: there is no `omnibus paln`"
    assert unknown_word(parser, "plan shwo") == "omnibus plan shwo: there is no `omnibus plan shwo`"
    assert unknown_word(parser, "plan show --jsno") == "omnibus plan show --jsno: `omnibus plan show` has no --jsno"
    assert unknown_word(parser, "plan show 3 --json") == ""
    assert TYPED.findall('eval "$(.venv/bin/omnibus env)" && omnibus plan shwo | head') == ["env", "plan shwo "]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def code_blocks(page: Path, *languages: str) -> list[str]:
    return [text for language, text in BLOCK.findall(page.read_text()) if language in languages]


def list_imports(tree: ast.AST) -> list[tuple[str, str]]:
    """Module and name of each import from ``omnibus``."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    omnibus_imports = [node for node in nodes if str(node.module).partition(".")[0] == "omnibus"]
    return [(str(node.module), each.name) for node in omnibus_imports for each in node.names]


def name_exists(module: str, name: str) -> bool:
    return hasattr(importlib.import_module(module), name) or find_spec(f"{module}.{name}") is not None


def make_targets(page: Path) -> list[str]:
    shell = "\n".join(line for language, line in code_lines(page) if language in SHELLS)
    pattern = r"(?:^|[\s`])make ([a-z][a-z-]+)"
    return re.findall(pattern, shell, re.MULTILINE) + re.findall(r"`make ([a-z][a-z-]+)", page.read_text())


def code_lines(page: Path) -> Iterator[tuple[str, str]]:
    """Lines of code blocks with their language; continued lines are joined."""
    for language, text in BLOCK.findall(page.read_text()):
        for line in text.replace("\\\n", " ").splitlines():
            yield language, line


def find_commands(page: Path) -> list[str]:
    """Words after ``omnibus`` in shell blocks and in sentences of ``page``."""
    shell_lines = [line for language, line in code_lines(page) if language in SHELLS]
    candidates = [command for line in shell_lines for command in TYPED.findall(line)]
    candidates += SPOKEN.findall(BLOCK.sub("", page.read_text()))
    return [command.strip() for command in candidates if (name_of(page), command.strip()) not in NOT_MEANT]


def unknown_word(parser: argparse.ArgumentParser, command: str) -> str:
    """Return the first unknown word or option of ``command``, or ""."""
    options = set(parser._option_string_actions)
    for word in _split_words(command):
        below = _commands_below(parser)
        if re.match("--?[a-z]", word):
            if word.partition("=")[0].rstrip("*.,") not in options:
                return f"omnibus {command}: `{parser.prog}` has no {word}"
        elif word in below:
            parser = below[word]
            options |= set(parser._option_string_actions)
        elif below and word != "-":
            return f"omnibus {command}: there is no `{parser.prog} {word}`"
    return ""


def _split_words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # cut off within quotes
        return command.split()


def _commands_below(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}
