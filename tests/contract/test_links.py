"""Links between the pages of this repository lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "README.md"]
NAMED = re.compile(r"`([\w/]+\.py): ([\w.]+)`")  # a name in a module
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def list_anchors(page: Path) -> set[str]:
    """Anchors of the headings of ``page``, as GitHub generates them."""
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in HEADING.findall(page.read_text())}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path):
    broken_links = []
    for link in LINK.findall(page.read_text()):
        target, _, anchor = link.partition("#")
        if ":" in target:  # another site
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in list_anchors(path)):
            broken_links.append(link)

    assert broken_links == []


def test_names_in_modules_that_pages_mention_are_there():
    sources = [path for room in ("services", "shared", "tests") for path in (ROOT / room).rglob("*.py")]
    missing = []
    for page in PAGES:
        for module, name in NAMED.findall(page.read_text()):
            texts = [path.read_text() for path in sources if path.as_posix().endswith(f"/{module}")]
            if not any(all(defines_name(text, part) for part in name.split(".")) for text in texts):
                missing.append(f"{page.name}: {module}: {name}")

    assert missing == []


def defines_name(text: str, name: str) -> bool:
    """Return True if the module ``text`` defines ``name``.

    A definition is a function, class or variable.
    """
    return (
        re.search(rf"^\s*((async )?def|class) {name}\b|^\s*([\w.]+\.)?{name}\b[^=\n]*=", text, re.MULTILINE) is not None
    )
