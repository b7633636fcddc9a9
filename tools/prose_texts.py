"""Prose in this repository: paragraphs of pages, docstrings and messages, without code and generated parts."""

import ast
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from tools.prose_comments import attribute_texts, script_texts, yaml_texts
from tools.prose_rules import Text, is_participle

_NOT_PROSE = re.compile(r"```.*?(```|\Z)|~~~.*?~~~|<!-- (\w+)[^>]*-->.*?<!-- (?:end of |/)\2 -->|<!--.*?-->", re.DOTALL)
_INDENTED_CODE = re.compile(r"^ {4,}(?![-*\d]).*$", re.MULTILINE)
_CODE = re.compile(r"``[^`]+``|`[^`]+`")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
#: Keywords whose string a reader sees: help of commands, descriptions of fields and routes.
_SHOWN_KEYWORDS = {"help", "description", "epilog", "summary", "title", "detail", "message"}
_SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_LEAVES = (ast.Name, ast.Constant, ast.Load, ast.Store)
_SHOWN_CALLS = {"print", "error", "warning", "info", "exception", "critical", "exit", "fail"}


class Source(NamedTuple):
    """Texts and names of one file; names with the lines of their definitions."""

    file: str
    texts: list[Text]
    bindings: int
    participles: list[tuple[int, str]]
    functions: list[tuple[int, str]]
    classes: list[tuple[int, str]]


def page_texts(file: str, page: str) -> Iterator[Text]:
    """Paragraphs, list items, headings and table cells of a page in Markdown."""
    page = _blank(_INDENTED_CODE, _blank(_NOT_PROSE, page))
    block: list[str] = []
    for number, line in enumerate([*page.splitlines(), ""], 1):
        fresh = re.match(r"\s*(?:[-*+]|\d+\.) +", line)
        if block and (fresh or not line.strip() or line.startswith(("#", "|"))):
            yield Text(file, number - len(block), "page", _plain("\n".join(block)))
            block = []
        if line.startswith(("#", "|")):
            yield from (
                Text(file, number, "page", _plain(cell.strip("# ")), True)
                for cell in line.split("|")
                if cell.strip("# -:")
            )
        elif line.strip():
            block.append(line[fresh.end() :] if fresh else line)


def is_generated(page: str) -> bool:
    """Return True if a program writes the whole page."""
    program = r"(tests\.pages|tests\.paths|make lab)`"
    verbs = r"\b(made|writes|written|generated)\b"
    opening = " ".join(page.split()[:300])
    return bool(re.search(rf"{verbs}.{{0,200}}{program}|{program},? .{{0,10}}{verbs}", opening))


def read_source(file: str, source: str) -> Source:
    """Collect the texts and the names of a Python file."""
    result = Source(file, [], 0, [], [], [])
    bindings = 0
    is_test = file.startswith("tests/")
    for node, names in _walk(ast.parse(source, file)):
        if isinstance(node, ast.ClassDef):
            result.classes.append((node.lineno, node.name))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            result.functions.append((node.lineno, node.name))
            names = {name: line for name, line in names.items() if name not in _flags(node)}
            bindings += len(names)
            result.participles.extend((line, name) for name, line in names.items() if is_participle(name))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            result.texts.extend(_docstring(file, node))
        elif not is_test and isinstance(node, ast.Raise | ast.Call):
            result.texts.extend(_messages(file, node))
    return result._replace(bindings=bindings, texts=list(dict.fromkeys(result.texts)))


def _walk(tree: ast.Module) -> list[tuple[ast.AST, dict[str, int]]]:
    """Return definitions, calls and raises in ``tree``, with names and lines.

    Names are those that a function binds. One pass without the generators of ``ast``, which take longer than the rules.
    """
    result: list[tuple[ast.AST, dict[str, int]]] = []
    stack: list[tuple[ast.AST, dict[str, int]]] = [(tree, {})]
    while stack:
        node, names = stack.pop()
        kind = type(node)
        if isinstance(node, ast.Name) and type(node.ctx) is ast.Store:
            names[node.id] = min(node.lineno, names.get(node.id, node.lineno))
        if kind in _LEAVES:
            continue
        if kind in _SCOPES:
            names = {each.arg: each.lineno for each in _parameters(node) if each.arg not in ("self", "cls")}
        if kind in _SCOPES or kind is ast.Raise or kind is ast.Call:
            result.append((node, names))
        for field in node._fields:
            value = getattr(node, field, None)
            children = value if type(value) is list else (value,)
            stack.extend((child, names) for child in children if isinstance(child, ast.AST))
    return result


def _parameters(node: ast.AST) -> list[ast.arg]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    return [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]


def _flags(function: ast.AST) -> set[str]:
    """Return the parameters that are flags: ``closed: bool`` is the noun of its type."""
    notes = {each.arg: each.annotation for each in _parameters(function)}
    return {name for name, note in notes.items() if isinstance(note, ast.Name) and note.id == "bool"}


def _blank(pattern: re.Pattern[str], text: str) -> str:
    return pattern.sub(lambda match: "\n" * match[0].count("\n"), text)


def _plain(text: str) -> str:
    return _LINK.sub(lambda match: match[1], _CODE.sub(lambda match: "CODE" + "\n" * match[0].count("\n"), text))


def _docstring(file: str, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Text]:
    first = node.body[0] if node.body else None
    if not (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    ):
        return
    line, is_summary = first.lineno, True
    for block in re.split(r"(\n[ \t]*(?=\n))", first.value.value):
        lines = block.strip("\n").splitlines()
        is_drawn = (
            is_summary is False and lines and all(each.startswith(" " * (first.col_offset + 4)) for each in lines)
        )
        if block.strip() and not block.lstrip().startswith((">>>", "|")):
            if is_drawn:
                yield from _drawn(file, line + block[: len(block) - len(block.lstrip("\n"))].count("\n"), lines)
            else:
                start = len(block) - len(block.lstrip())
                opening = line + block.count("\n", 0, start)
                yield Text(file, opening, "docstring", _plain(block.strip()), False, is_summary)
            is_summary = False
        line += block.count("\n")


def _drawn(file: str, line: int, lines: list[str]) -> Iterator[Text]:
    """Descriptions at the ends of the lines of a drawn tree; other indented blocks are code."""
    for number, each in enumerate(lines):
        if "──" in each:
            yield Text(file, line + number, "docstring", _plain(re.split(r"\s{2,}", each)[-1]), True)


def _messages(file: str, node: ast.Raise | ast.Call) -> Iterator[Text]:
    call = node.exc if isinstance(node, ast.Raise) else node
    if not isinstance(call, ast.Call):
        return
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    arguments = call.args if isinstance(node, ast.Raise) or name in _SHOWN_CALLS or _is_error(name) else []
    keywords = [each.value for each in call.keywords if each.arg in _SHOWN_KEYWORDS]
    for part in chain(*map(_strings, [*arguments, *keywords])):
        text = _plain(_text(part))
        if len(text.split()) > 2:
            yield Text(file, part.lineno, "message", text)


def _is_error(name: str) -> bool:
    return name[:1].isupper() and name.endswith(("Error", "Failed", "Request", "Media", "Found", "Unavailable", "Full"))


def _strings(node: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    """Outermost strings of an expression; those in the calls and subscripts in it are values, not texts."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node
    elif isinstance(node, ast.BinOp | ast.IfExp | ast.BoolOp | ast.Tuple):
        yield from chain(*map(_strings, ast.iter_child_nodes(node)))


def _text(node: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    return "".join(str(each.value) if isinstance(each, ast.Constant) else "CODE" for each in node.values)


def read_file(root: Path, file: str) -> Source:
    """Collect the texts of ``file`` below ``root``: a page, a Python file, YAML or a script."""
    content = (root / file).read_text()
    if file.endswith(".py"):
        source = read_source(file, content)
        return (
            source
            if file.startswith("tests/")
            else source._replace(texts=[*source.texts, *attribute_texts(file, content)])
        )
    if file.endswith((".js", ".yaml", ".yml")):
        texts = script_texts if file.endswith(".js") else yaml_texts
        return Source(file, list(texts(file, content)), 0, [], [], [])
    return Source(file, [] if is_generated(content) else list(page_texts(file, content)), 0, [], [], [])
