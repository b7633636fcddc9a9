"""The page of all errors, from the tree of ``omnibus.errors`` and the mistakes of ``tests.mistakes``."""

import re
from collections.abc import Iterator
from http import HTTPStatus

from omnibus import errors
from omnibus.errors import OmnibusError
from omnibus.reference.fields import to_markdown
from tests.pages import mistakes

HEAD = """# Errors

Errors of HTTP answers, of tasks and on the bus, and messages of the command line. Let clients decide by `code`, which
is stable; the message contains the problem and the remedy.

An error is `{"error": {"message", "type", "param", "code", "request_id", "stage", "executor", "attempt"}}`. The first
four are as in OpenAI's API: `param` names the place in the request. `stage` and `executor` name the part of a model
that failed, if it is known. A stream that fails ends with the same object.

OpenAI's clients retry each 408, 409, 429 and 5xx twice. Therefore each error has `x-should-retry`: `true` if the same
request may succeed a moment later, else `false`. With `overloaded`, `Retry-After` is a wait of 1 to 60 seconds, which
all clients obey. A longer wait than 120 seconds, or a limit that waiting does not lift, has `x-should-retry: false`.

`python -m tests.pages` writes this page from `shared/omnibus/errors.py` and `tests/mistakes/table.py`.
"""
GROUPS = {
    errors.Rejected: "The request is invalid; retrying it unchanged will fail.",
    errors.Retryable: "A retry, or another replica, may succeed.",
    errors.Fatal: "A defect of this system, of a model or of an app.",
}
_LINE = re.compile(r"[│├└─\s]*(?:├──|└──) (?P<name>\w+) *(?:\d{3})? *(?P<text>.*)")


def make_page() -> str:
    return "\n".join([HEAD, *map(_format_section, GROUPS), mistakes.section()])


def read_meanings() -> dict[str, str]:
    """Meaning of each class in the docstring of ``omnibus.errors``, or "" without one."""
    matches = map(_LINE.fullmatch, (errors.__doc__ or "").splitlines())
    return {line["name"]: line["text"].strip() for line in matches if line}


def subclasses_of(root: type[OmnibusError]) -> Iterator[type[OmnibusError]]:
    """Classes below ``root`` that ``omnibus.errors`` defines, in tree order."""
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from subclasses_of(child)


def _format_section(root: type[OmnibusError]) -> str:
    rows = ["| code | HTTP | retry | class | meaning |", "|---|---|---|---|---|"]
    texts = read_meanings()
    for each in subclasses_of(root):
        meaning = to_markdown(texts[each.__name__]) or HTTPStatus(each.status).phrase
        retry = "yes" if each.retry_helps else "no"
        rows.append(f"| `{each.code}` | {each.status} | {retry} | `{each.__name__}` | {meaning} |")
    return "\n".join([f"## {root.__name__}", "", GROUPS[root], "", *rows, ""])
