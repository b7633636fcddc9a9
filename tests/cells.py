"""Table of engines, families and shapes whose results tests claim equal.

A test of equality declares its cell by ``@pytest.mark.cell("transformers", "qwen2_5_vl", "tokens")``: engine, family,
and the output that is equal. The shape is the test's parameter ``shape``, so it is the one that the test runs. A test
without that parameter passes ``shape=``, one or several.

``python -m tests.cells`` writes the table into ``docs/engines.md``, and that of ``tests.families`` into
``docs/models.md``.
"""

import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import by_night, families

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "engines.md"
BEGIN, END = "<!-- cells: python -m tests.cells -->\n", "<!-- end of cells -->\n"

#: Outputs that may be equal, and their meaning.
KINDS = {
    "tokens": "a greedy answer equals that of `generate` of the whole model, or of the language model in `transformers`",
    "sampled": "a sampled answer with a seed is the same in all these shapes",
    "rows": "the talker's input equals that of `transformers`, to 1e-4",
    "waveform": "speech equals that of `generate`, to one step of 16 bits",
    "pixels": "an image equals that of the library's pipeline before rounding; shapes agree exactly",
    "video": "frames equal those of the library's pipeline before rounding, and audio to 1e-5; shapes agree exactly",
    "vectors": "the vector of a text or an image equals that of the library, to 1e-5 (llama_cpp: 1e-3)",
    "scores": "the score of a document equals that of the library, to 1e-5",
}
#: A test with one of these is not run, or may fail: it can claim nothing.
IDLE = ("skip", "skipif", "xfail", "bench", "browser", "docker")


class Claim(NamedTuple):
    """One test and its claim."""

    engine: str
    family: str
    shape: str
    equal: str
    file: str


class Claims:
    """A pytest plugin that reads the cells of all collected tests."""

    def __init__(self) -> None:
        self.found: set[Claim] = set()

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        for mark in item.iter_markers("cell"):
            self.found |= set(_read_claims(item, mark))


def collect_claims() -> set[Claim]:
    """Claims of all tests. Raises ``ValueError`` for failed collection or invalid claims."""
    claims = Claims()
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if "mark.cell(" in path.read_text()]
    with contextlib.redirect_stdout(sys.stderr):
        code = pytest.main(["--collect-only", "-qq", f"--rootdir={ROOT}", *map(str, files)], plugins=[claims])
    if code:
        raise ValueError("the tests could not be collected, see above")
    return claims.found


def format_table(claims: Iterable[Claim]) -> str:
    """Return the documentation's table of ``claims``, in Markdown."""
    rows: dict[tuple[str, str, str], set[Claim]] = {}
    for claim in claims:
        rows.setdefault(claim[:3], set()).add(claim)
    shapes: dict[tuple[str, str, str], list[str]] = {}  # those with equal results share a row
    for engine, family, shape in sorted(rows, key=_sort_key):
        equal = {claim.equal for claim in rows[engine, family, shape]}
        kinds = ", ".join(kind for kind in KINDS if kind in equal)
        shapes.setdefault((engine, family, kinds), []).append(f"`{shape}`")
    lines = ["| engine | family | shapes | equal |", "|---|---|---|---|"]
    lines += [
        f"| {engine} | {family} | {', '.join(cells)} | {kinds} |" for (engine, family, kinds), cells in shapes.items()
    ]
    all_kinds = {claim.equal for row_claims in rows.values() for claim in row_claims}
    return "\n".join([*lines, "", *(f"- **{kind}**: {KINDS[kind]}." for kind in KINDS if kind in all_kinds), ""])


def write_table(path: Path, claims: Iterable[Claim]) -> None:
    """Write the table into ``path``."""
    before, rest = path.read_text().split(BEGIN)
    after = rest.split(END)[1]
    path.write_text(f"{before}{BEGIN}{format_table(claims)}{END}{after}")


def _read_claims(item: pytest.Item, mark: pytest.Mark) -> Iterator[Claim]:
    engine, family, equal = mark.args
    callspec = getattr(item, "callspec", None)
    shape = mark.kwargs["shape"] if "shape" in mark.kwargs else callspec.params["shape"] if callspec else None
    if item.get_closest_marker("nightly") is not None or by_night.is_by_night(item.nodeid):
        return  # others that run each time claim what is claimed
    idle = [name for name in IDLE if item.get_closest_marker(name)]
    if idle or shape is None or equal not in KINDS:
        raise ValueError(f"{item.nodeid} claims {mark.args} in shape {shape}, marked {idle}: it cannot")
    for one in (shape,) if isinstance(shape, str) else shape:
        yield Claim(engine, family, one, equal, str(item.path.relative_to(item.config.rootpath)))


def _sort_key(cell: tuple[str, str, str]) -> tuple[str, str, int, str]:
    engine, family, shape = cell
    return engine, family, shape.count(">"), shape


def main(docs: Path = DOCS, models: Path = families.PAGE) -> None:
    """Write both tables."""
    claims = collect_claims()
    write_table(docs, claims)
    families.write_table(models, (claim[:3] for claim in claims))
    families.write_language_models(models)
    families.write_pipelines(models)
    families.write_recognizers(models)
    families.write_dual_encoders(models)
    families.write_speakers(models)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
