"""Features of clients that tests run: each test declares them, and they are what the gateway received.

Examples of pages declare them in a comment before the block, tests by the marker of ``declare_features``. Conversations
by voice need no relay, because their test checks each feature of its marker. The table of docs/clients.md has the
declarations (``tests.pages.clients``).
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "docs" / "clients.md", ROOT / "examples" / "clients" / "README.md")
TESTS = Path(__file__).parent
#: Columns of the table.
FEATURES = ("chat", "stream", "image", "audio", "tools", "JSON")
_SECTION = re.compile(r"^## (.+?)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(
    r"(?:^<!-- shows ([^\n:]+): ([^\n]*?) -->\n)?^```(python|javascript|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


class PageExample(NamedTuple):
    """A block of a page: its section, number in it, language, text, client and features."""

    title: str
    number: int
    language: str
    code: str
    client: str
    features: frozenset[str]


def read_examples() -> Iterator[PageExample]:
    """Yield the blocks of the pages of clients, in their order."""
    for page in PAGES:
        for title, section in _SECTION.findall(page.read_text()):
            for number, (client, names, language, code) in enumerate(_BLOCK.findall(section), 1):
                yield PageExample(title, number, language, code, client, frozenset(names.split()))


def declare_features(client: str, features: str) -> pytest.MarkDecorator:
    """Declare that a test runs ``features`` of ``client``, separated by spaces."""
    return pytest.mark.shows(client, features)


def declared_features(node: Any) -> frozenset[str] | None:
    """Return the features that the test ``node`` declares; None without a marker."""
    marker = node.get_closest_marker("shows")
    return None if marker is None else frozenset(marker.args[1].split())


def read_declarations() -> dict[str, frozenset[str]]:
    """Return the features of each client that examples and tests declare."""
    features_by_client: dict[str, frozenset[str]] = {}
    for client, names in [*((each.client, each.features) for each in read_examples()), *_read_markers()]:
        if client:
            features_by_client[client] = features_by_client.get(client, frozenset()) | names
    return features_by_client


def _read_markers() -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the declarations in the tests of clients, without importing them."""
    for path in sorted(TESTS.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == declare_features.__name__
            ):
                client, names = (ast.literal_eval(argument) for argument in node.args)
                yield client, frozenset(names.split())
