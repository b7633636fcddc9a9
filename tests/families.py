"""The table of model families in docs/models.md.

It combines the catalogue with the engines that tests compare. ``python -m tests.cells`` writes it.
"""

from collections.abc import Iterable
from pathlib import Path

from omnibus.families import catalog
from omnibus.families.specs import ABSENT, KNOWN

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
BEGIN, END = "<!-- families: python -m tests.cells -->\n", "<!-- end of families -->\n"


def format_table(cells: Iterable[tuple[str, str, str]]) -> str:
    """A row for each family, in Markdown. ``cells`` are engine, family and shape of each claim of a test."""
    claims = set(cells)
    lines = [
        "| family | models | takes | gives | tested on vLLM | tiny model |",
        "|---|---|---|---|---|---|",
        *(_format_row(name, claims) for name in KNOWN),
        "",
        f"Not served: {ABSENT['NVLM_D']}.",
    ]
    return "\n".join([*lines, ""])


def write_table(path: Path, cells: Iterable[tuple[str, str, str]]) -> None:
    """Write the table into ``path``."""
    before, rest = path.read_text().split(BEGIN)
    path.write_text(f"{before}{BEGIN}{format_table(cells)}{END}{rest.split(END)[1]}")


def _format_row(name: str, cells: set[tuple[str, str, str]]) -> str:
    about = catalog.find_family(name)
    words = [
        f"`{name}`",
        KNOWN[name].title,
        ", ".join(catalog.input_kinds(about)),
        ", ".join(catalog.output_kinds(about)),
        "yes" if any((engine, family) == ("vllm", name) for engine, family, _ in cells) else "",
    ]
    return f"| {' | '.join([*words, f'`{KNOWN[name].tiny}`'])} |"
