"""Prose outside of docstrings: comments on attributes, comments of YAML, and texts of the console's scripts."""

import re
from collections.abc import Iterator

from tools.prose_rules import Text

_ATTRIBUTE = re.compile(r"\s*#: ?(.*)")
_COMMENT = re.compile(r"\s*# ?(.*)")
#: Texts of an alert.
_ANNOTATION = re.compile(r"\s*(?:summary|description): (.*)")
_CODE = re.compile(r"``[^`]+``|`[^`]+`|\{\{.*?\}\}")
#: A string or template of a script, and what it inserts.
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"|`((?:[^`\\]|\\.)*)`')
_INSERTED = re.compile(r"\$\{[^}]*\}")
#: Selectors, styles and markup.
_NOT_SHOWN = re.compile(r"[{};#>]|^\.|px\b")


def attribute_texts(file: str, source: str) -> Iterator[Text]:
    """Comments that describe an attribute or constant of a Python file; pages of reference show many of them."""
    return _comment_texts(file, source, _ATTRIBUTE, "docstring")


def yaml_texts(file: str, source: str) -> Iterator[Text]:
    """Comments of a YAML file, and the texts of its alerts."""
    yield from _comment_texts(file, source, _COMMENT, "page")
    for number, line in enumerate(source.splitlines(), 1):
        if annotation := _ANNOTATION.fullmatch(line):
            yield Text(file, number, "message", _CODE.sub("CODE", annotation[1]))


def script_texts(file: str, source: str) -> Iterator[Text]:
    """Strings of at least three words that a script shows."""
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith(("//", "*", "/*")):
            continue
        for string in _STRING.finditer(line):
            text = _INSERTED.sub("CODE", string[1] or string[2] or "")
            if len(text.split()) > 2 and re.search("[a-z]{3}", text) and not _NOT_SHOWN.search(text):
                yield Text(file, number, "message", text)


def _comment_texts(file: str, source: str, pattern: re.Pattern[str], kind: str) -> Iterator[Text]:
    block: list[str] = []
    for number, line in enumerate([*source.splitlines(), ""], 1):
        comment = pattern.fullmatch(line)
        if comment and comment[1].strip():
            block.append(comment[1].removeprefix("-- "))
        elif block:
            yield Text(file, number - len(block), kind, _CODE.sub("CODE", "\n".join(block)))
            block = []
