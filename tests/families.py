"""The tables of model families and language models in docs/models.md.

The first combines the catalogue with the engines that tests compare, the second has the outcomes of
``tests.auto_families``. ``python -m tests.cells`` writes both.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from omnibus.families import catalog
from omnibus.families.specs import ABSENT, KNOWN

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
OUTCOMES = Path(__file__).parent / "auto_families" / "outcomes"
WAYS = ("batched", "batched, prompts whole", "one at a time", "one at a time, prompts whole")
BEGIN_TYPES, END_TYPES = "<!-- language models: python -m tests.cells -->\n", "<!-- end of language models -->\n"
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
    _replace_block(path, BEGIN, format_table(cells), END)


def format_language_models() -> str:
    """Lists of the types of language models that transformers knows, by the way they run, in Markdown."""
    [path] = sorted(OUTCOMES.glob("transformers-*.json"))[-1:]
    ways: dict[str, str] = json.loads(path.read_text())
    lines = [f"Of the {len(ways)} types that transformers {path.stem.removeprefix('transformers-')} knows:", ""]
    lines += ["| a request runs | types | names |", "|---|---|---|"]
    for way in dict.fromkeys([*WAYS, *sorted(ways.values())]):
        names = [f"`{name}`" for name, each in ways.items() if each == way]
        lines += [f"| {way} | {len(names)} | {', '.join(names)} |"] if names else []
    return "\n".join([*lines, ""])


def write_language_models(path: Path) -> None:
    """Write the lists into ``path``."""
    _replace_block(path, BEGIN_TYPES, format_language_models(), END_TYPES)


def _replace_block(path: Path, begin: str, text: str, end: str) -> None:
    before, rest = path.read_text().split(begin)
    path.write_text(f"{before}{begin}{text}{end}{rest.split(end)[1]}")


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
