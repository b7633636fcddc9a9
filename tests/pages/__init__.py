"""Pages generated from definitions: ``python -m tests.pages`` writes them into ``docs/``."""

from collections.abc import Callable
from pathlib import Path

from tests.pages import (
    behaviours,
    clients,
    errors,
    first_steps,
    formats,
    settings,
    sizing,
    tasks,
    testing,
    tools,
)

DOCS = Path(__file__).parents[2] / "docs"
#: Generator of the text by file, relative to ``docs/``.
PAGES: dict[str, Callable[[], str]] = {
    "clients.md": clients.page,
    "dependencies.md": behaviours.page,
    "errors.md": errors.page,
    "first-steps.md": first_steps.page,
    "operations.md": sizing.page,
    "routes.md": formats.page,
    "settings.md": settings.page,
    "tasks.md": tasks.page,
    "../tests/README.md": testing.page,
    "tools.md": tools.page,
}


def write_pages() -> None:
    """Write every page."""
    for name, make in PAGES.items():
        (DOCS / name).write_text(make())
