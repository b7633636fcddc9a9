"""The core of the gateway: the few names by which its surfaces reach requests."""

import ast
from pathlib import Path

from omnibus_gateway import core

GATEWAY = Path(core.__file__).parent
#: Packages below the surfaces. Every other one is a surface, and ``make lint`` checks that they import only the core.
_BELOW = {
    "auth", "dispatch", "http", "media", "openai", "pricing", "request", "rerun", "routing", "tasks", "tenancy",
}  # fmt: skip
MOST_NAMES = 12


def find_used_names() -> set[str]:
    """Return the names of the core that surfaces import."""
    names: set[str] = set()
    for path in GATEWAY.glob("*/**/*.py"):
        if path.relative_to(GATEWAY).parts[0] not in _BELOW:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module == core.__name__:
                    names |= {alias.name for alias in node.names}
    return names


def test_surfaces_reach_requests_by_few_names():
    assert len(core.__all__) <= MOST_NAMES
    assert all(hasattr(core, name) for name in core.__all__)


def test_surfaces_use_each_name_of_the_core():
    assert find_used_names() == set(core.__all__)
