"""The table of model families in docs/models.md.

It combines the catalogue with the shapes that tests compare. ``python -m tests.cells`` writes it.
"""

from collections.abc import Iterable
from pathlib import Path

from omnibus.families import catalog
from omnibus.families.specs import ABSENT, KNOWN

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
BEGIN, END = "<!-- families: python -m tests.cells -->\n", "<!-- end of families -->\n"
ENGINES = ("transformers", "vllm")


def format_table(cells: Iterable[tuple[str, str, str]]) -> str:
    """A row for each family, in Markdown. ``cells`` are engine, family and shape of each claim of a test."""
    claims = set(cells)
    lines = [
        "| family | models | takes | gives | equal on transformers | equal in vLLM | tiny model |",
        "|---|---|---|---|---|---|---|",
        *(_format_row(name, claims) for name in KNOWN),
        f"| - | NVLM-D | | | not served: {ABSENT['NVLM_D']} | | |",
    ]
    return "\n".join([*lines, ""])


def write_table(path: Path, cells: Iterable[tuple[str, str, str]]) -> None:
    """Write the table into ``path``."""
    before, rest = path.read_text().split(BEGIN)
    path.write_text(f"{before}{BEGIN}{format_table(cells)}{END}{rest.split(END)[1]}")


def _format_row(name: str, cells: set[tuple[str, str, str]]) -> str:
    about = catalog.find_family(name)
    shapes = [" ".join(f"`{shape}`" for shape in _list_shapes(name, engine, cells)) for engine in ENGINES]
    words = [
        f"`{name}`",
        KNOWN[name].title,
        ", ".join(catalog.input_kinds(about)),
        ", ".join(catalog.output_kinds(about)),
        *shapes,
    ]
    return f"| {' | '.join([*words, f'`{KNOWN[name].tiny}`'])} |"


def _list_shapes(name: str, engine: str, cells: set[tuple[str, str, str]]) -> list[str]:
    """Shapes in order of their number of executors."""
    shapes = [shape for of, family, shape in cells if (of, family) == (engine, name)]
    return sorted(shapes, key=lambda shape: (shape.count(">"), shape))
