"""The tables of model families, language models, recognizers, speakers, dual encoders and pipelines in docs/models.md.

The first combines the catalogue with the engines that tests compare, the others have the outcomes of
``tests.auto_families`` and ``tests.auto_pipelines``. ``python -m tests.cells`` writes all.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from omnibus.families import catalog
from omnibus.families.specs import ABSENT, KNOWN

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
OUTCOMES = Path(__file__).parent / "auto_families" / "outcomes"
PIPELINES = Path(__file__).parent / "auto_pipelines" / "outcomes"
FROM = ("from text, or with an image", "from text", "from an image")
SPEAKING = (
    "codes as they are generated",
    "sentence by sentence",
    "the whole text at once",
    "by a family of its own",
    "not served",
)
BEGIN_PIPELINES, END_PIPELINES = "<!-- pipelines: python -m tests.cells -->\n", "<!-- end of pipelines -->\n"
WAYS = ("batched", "batched, prompts whole", "one at a time", "one at a time, prompts whole")
BEGIN_TYPES, END_TYPES = "<!-- language models: python -m tests.cells -->\n", "<!-- end of language models -->\n"
BEGIN_MEDIA, END_MEDIA = "<!-- multimodal models: python -m tests.cells -->\n", "<!-- end of multimodal models -->\n"
BEGIN_RECOGNIZERS, END_RECOGNIZERS = "<!-- recognizers: python -m tests.cells -->\n", "<!-- end of recognizers -->\n"
BEGIN_SPEAKERS, END_SPEAKERS = "<!-- speakers: python -m tests.cells -->\n", "<!-- end of speakers -->\n"
BEGIN_DUAL, END_DUAL = "<!-- dual encoders: python -m tests.cells -->\n", "<!-- end of dual encoders -->\n"
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
    return _format_outcomes(OUTCOMES, "types that transformers {} knows", "a request runs | types", WAYS)


def format_multimodal_models() -> str:
    """Lists of the types of multimodal models that transformers knows, by the media they take, in Markdown."""
    return _format_outcomes(OUTCOMES / "multimodal", "types that transformers {} knows", "takes | types", ())


def format_pipelines() -> str:
    """Lists of the pipelines that diffusers has in blocks, by what they generate from, in Markdown."""
    return _format_outcomes(PIPELINES, "pipelines that diffusers {} has in blocks", "it generates | pipelines", FROM)


def _format_outcomes(directory: Path, title: str, columns: str, ways: Iterable[str]) -> str:
    path, *newer = sorted(directory.glob("*.json"))
    outcomes: dict[str, str] = json.loads(path.read_text())
    lines = [f"Of the {len(outcomes)} {title.format(path.stem.rpartition('-')[2])}:", ""]
    lines += [f"| {columns} | names |", "|---|---|---|"]
    for way in dict.fromkeys([*ways, *sorted(outcomes.values())]):
        names = [f"`{name}`" for name, each in outcomes.items() if each == way]
        lines += [f"| {way} | {len(names)} | {', '.join(names)} |"] if names else []
    for each in newer:
        lines += ["", _describe_changes(outcomes, json.loads(each.read_text()), each.stem.replace("-", " "))]
    return "\n".join([*lines, ""])


def _describe_changes(before: Mapping[str, str], after: Mapping[str, str], version: str) -> str:
    """Return what a newer ``version`` of a library does otherwise."""
    changes = [f"`{name}`: {way}" for name, way in after.items() if name in before and before[name] != way]
    changes += [f"no longer known: `{name}`" for name in before if name not in after]
    added = {name: way for name, way in after.items() if name not in before}
    for way in sorted({*added.values()}):
        changes.append(f"new, {way}: {', '.join(f'`{name}`' for name in added if added[name] == way)}")
    return f"Otherwise with {version}: {'; '.join(changes) or 'nothing'}."


def write_language_models(path: Path) -> None:
    """Write the lists into ``path``."""
    _replace_block(path, BEGIN_TYPES, format_language_models(), END_TYPES)
    _replace_block(path, BEGIN_MEDIA, format_multimodal_models(), END_MEDIA)


def write_pipelines(path: Path) -> None:
    """Write the lists into ``path``."""
    _replace_block(path, BEGIN_PIPELINES, format_pipelines(), END_PIPELINES)


def format_recognizers() -> str:
    """Lists of the types of recognizers that transformers knows, by the way they run, in Markdown."""
    title = "types of recognizers that transformers {} knows"
    return _format_outcomes(OUTCOMES / "recognizers", title, "a window runs | types", WAYS)


def write_recognizers(path: Path) -> None:
    """Write the lists into ``path``."""
    _replace_block(path, BEGIN_RECOGNIZERS, format_recognizers(), END_RECOGNIZERS)


def format_speakers() -> str:
    """Lists of the types of text-to-speech models that transformers knows, by the way they speak, in Markdown."""
    title = "types of text-to-speech models that transformers {} knows"
    return _format_outcomes(OUTCOMES / "speakers", title, "it speaks | types", SPEAKING)


def write_speakers(path: Path) -> None:
    """Write the lists into ``path``."""
    _replace_block(path, BEGIN_SPEAKERS, format_speakers(), END_SPEAKERS)


def format_dual_encoders() -> str:
    """Lists of the types of embedders of texts and images that transformers knows, by their batches, in Markdown."""
    title = "types of embedders of texts and images that transformers {} knows"
    return _format_outcomes(OUTCOMES / "dual_encoders", title, "it embeds | types", ())


def write_dual_encoders(path: Path) -> None:
    """Write the lists into ``path``."""
    _replace_block(path, BEGIN_DUAL, format_dual_encoders(), END_DUAL)


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
