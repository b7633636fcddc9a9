"""The page of all client errors, from the tree of ``omnibus.errors``."""

import re
from collections.abc import Iterator
from http import HTTPStatus

from omnibus import errors
from omnibus.errors import OmnibusError
from omnibus.reference.comments import to_markdown

HEAD = """# Errors

Every error that Omnibus raises on purpose, on the bus, in HTTP answers and in tasks. Clients decide by `code`, which
is stable; the message says what happened and what to do.

The body of an answer is `{"error": {"message", "type", "param", "code", "request_id", "stage", "executor", "attempt"}}`,
with the first four as in OpenAI's API: `param` names the place in the request; `stage` and `executor`, where they are
known, the part of a model that failed. A stream that fails ends with the same object.

Clients of OpenAI retry each 408, 409, 429 and 5xx twice on their own. So each error carries `x-should-retry`: `true` where
the same request may succeed a moment later, `false` where a retry would only repeat the work or the rejection. With
`overloaded`, `Retry-After` is a wait in seconds that all clients obey: 1 to 60. A wait of more than 120 seconds, or a
limit that waiting does not lift, comes with `x-should-retry: false`.

This page is made from `shared/omnibus/errors.py`, by `python -m tests.pages`.
"""
GROUPS = {
    errors.Rejected: "The request is at fault: change it, it would fail again.",
    errors.Retryable: "Another try, or another replica, may succeed.",
    errors.Fatal: "A defect or a broken promise of this system, of a model or of an app.",
}
_LINE = re.compile(r"[│├└─\s]*(?:├──|└──) (?P<name>\w+) *(?:\d{3})? *(?P<text>.*)")


def make_page() -> str:
    return "\n".join([HEAD, *map(_format_section, GROUPS)])


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
