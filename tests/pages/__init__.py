"""Pages generated from definitions: ``python -m tests.pages`` writes them into ``docs/``."""

from collections.abc import Callable
from pathlib import Path

from tests.pages import (
    alerts,
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
    "clients.md": clients.make_page,
    "dependencies.md": behaviours.make_page,
    "errors.md": errors.make_page,
    "first-steps.md": first_steps.make_page,
    "operations.md": sizing.make_page,
    "routes.md": formats.make_page,
    "settings.md": settings.make_page,
    "tasks.md": tasks.make_page,
    "../tests/README.md": testing.make_page,
    "../services/gateway/omnibus_gateway/console/alerts.json": alerts.make_page,
    "tools.md": tools.make_page,
}


def write_pages() -> None:
    """Write every page."""
    for name, make in PAGES.items():
        (DOCS / name).write_text(make())
