"""``python -m tools.prose``: figures of plain English in pages, docstrings, messages and names, and a ratchet for them.

``python -m tools.prose FILE...`` lists what breaks a rule of CONTRIBUTING.md in these files or directories. Without
files, the exit code is 1 if a count is above both its limit in ``tools/prose.toml`` and its goal.
``python -m tools.prose --write`` lowers the limits to the counts of today. It raises none: edit the file for that.
"""

import argparse
import gc
import math
import os
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from tools.prose_rules import WORD, Hit, Text, bad_summaries, idioms, long_sentences, sentences
from tools.prose_texts import Source, read_file

ROOT = Path(__file__).parents[1]
LIMITS = Path(__file__).with_name("prose.toml")
CACHE = ROOT / "build/prose.json"
TREES = ("services", "shared", "tests", "tools", "examples")
_CHECKS: dict[str, Callable[[Text], list[Hit]]] = {
    "idioms": idioms, "sentences": long_sentences, "summaries": bad_summaries,
}  # fmt: skip
#: Where the ratchet ends: the share of a size that a count may always have. The first two are shares of words.
GOALS = {
    "idioms": ("words", 0.003), "sentences": ("words", 0.006), "summaries": ("docstrings", 0.05),
    "participles": ("bindings", 0.02), "helpers": ("helper_functions", 0.4), "classes": ("test_classes", 0.05),
}  # fmt: skip
_HEADER = """\
# Limits of `python -m tools.prose`: how often a page or package may break a rule of plain English (CONTRIBUTING.md).
# `python -m tools.prose --write` lowers them, and removes those within their goals. A page or package without a line
# has its goals as limits: for a page, 3 idioms and 6 long sentences in 1,000 words. If a merge conflicts here, keep the
# lines of either side, then run it.
"""


class Report(NamedTuple):
    """Findings in one file, and the sizes to compare them with."""

    file: str
    hits: dict[str, list[Hit]]
    sizes: dict[str, int]
    classes: list[tuple[int, str]]


class Cached(NamedTuple):
    """Report of a file with this size and change time in nanoseconds."""

    size: int
    changed: int
    report: Report


class Excess(NamedTuple):
    """A count of ``area`` that is above its limit."""

    area: str
    measure: str
    number: int
    limit: int


def report(source: Source) -> Report:
    """Apply the rules to the contents of one file."""
    hits = {measure: [hit for text in source.texts for hit in check(text)] for measure, check in _CHECKS.items()}
    participles = [Hit(source.file, line, "names", name, "the noun of its type") for line, name in source.participles]
    sizes: Counter[str] = Counter(bindings=source.bindings)
    for text in source.texts:
        words = len(WORD.findall(text.text))
        lengths = [len(sentence.split()) for _, sentence in sentences(text)]
        sizes.update({"words": words, f"{text.kind} words": words, f"{text.kind} idioms": len(idioms(text))})
        sizes.update({f"{text.kind} sentences": len(lengths), f"{text.kind} length": sum(lengths)})
        sizes["docstrings"] += text.is_summary
    helpers = [each for each in source.functions if _is_helper(source.file, each[1])]
    short = [each for each in helpers if "_" not in each[1].strip("_")]
    instead = "verb and object: send_chat, start_gateway"
    hits |= {
        "participles": participles,
        "helpers": [Hit(source.file, line, "test helpers", name, instead) for line, name in short],
    }
    is_test = source.file.startswith("tests/")
    sizes.update(helper_functions=len(helpers), test_classes=len(source.classes) * is_test)
    return Report(source.file, hits, sizes, source.classes if is_test else [])


def add_shared_classes(reports: Iterable[Report]) -> None:
    """Add a hit to each report for test classes with shared names."""
    files = defaultdict(set)
    reports = list(reports)
    for each in reports:
        for _, name in each.classes:
            files[name].add(each.file)
    for each in reports:
        each.hits["classes"] = [
            Hit(each.file, line, "test classes", name, f"a name of its own, {len(files[name])} modules have this one")
            for line, name in each.classes
            if len(files[name]) > 1
        ]


def area(file: str) -> str:
    """Return the area that counts ``file``: itself if it is a page, else its package."""
    if file.endswith(".md"):
        return file
    return "/".join(file.split("/")[: 2 if file.startswith(("services/", "shared/")) else 1])


def total(reports: Iterable[Report]) -> tuple[dict[str, Counter[str]], dict[str, Counter[str]]]:
    """Return counts and sizes by area."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    sizes: dict[str, Counter[str]] = defaultdict(Counter)
    for each in reports:
        counts[area(each.file)].update({measure: len(hits) for measure, hits in each.hits.items()})
        sizes[area(each.file)].update(each.sizes)
    return counts, sizes


def goal(measure: str, sizes: Counter[str]) -> int:
    """Return the count of ``measure`` that these sizes always allow."""
    size, share = GOALS[measure]
    return math.ceil(sizes[size] * share)


def excesses(
    counts: dict[str, Counter[str]], sizes: dict[str, Counter[str]], limits: dict[str, dict[str, int]]
) -> list[Excess]:
    """Return the counts that are above their limits."""
    return [
        Excess(name, measure, count, limit)
        for name, measures in sorted(counts.items())
        for measure, count in measures.items()
        if count > (limit := max(limits.get(name, {}).get(measure, 0), goal(measure, sizes[name])))
    ]


def lowered(
    counts: dict[str, Counter[str]], sizes: dict[str, Counter[str]], limits: dict[str, dict[str, int]] | None
) -> dict[str, dict[str, int]]:
    """Return the limits of today, none above ``limits`` or within its goal."""
    result = {}
    for name, measures in sorted(counts.items()):
        before = (
            {measure: limits.get(name, {}).get(measure, 0) for measure in GOALS} if limits is not None else measures
        )
        lower = {measure: min(measures[measure], before[measure]) for measure in GOALS}
        result[name] = {each: count for each, count in lower.items() if count > goal(each, sizes[name])}
    return {name: measures for name, measures in result.items() if measures}


def write_limits(path: Path, limits: dict[str, dict[str, int]]) -> None:
    """Write ``limits``, an area a line."""
    lines = [f'"{name}" = {{ {", ".join(f"{each} = {n}" for each, n in limits[name].items())} }}' for name in limits]
    path.write_text(_HEADER + "\n".join(lines) + "\n")


def read_limits(path: Path) -> dict[str, dict[str, int]] | None:
    """Return the limits in ``path``, or None if it does not exist."""
    return tomllib.loads(path.read_text()) if path.exists() else None


def list_files(root: Path) -> list[str]:
    """Return the pages and files that the rules are for."""
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    sources = sorted(path for tree in TREES for path in (root / tree).rglob("*.py"))
    scripts = sorted((root / "services").rglob("static/*.js"))
    data = [root / "deploy/helm/omnibus/values.yaml", *sorted((root / "deploy").glob("*/*.y*ml"))]
    files = [*pages, *sources, *scripts, *data]
    return [path.relative_to(root).as_posix() for path in files if path.exists()]


def read_reports(root: Path, files: list[str], cache: Path) -> list[Report]:
    """Read ``files`` in one process per core; unchanged ones come from ``cache``."""
    rules = max(path.stat().st_mtime_ns for path in Path(__file__).parent.glob("prose*.py"))
    entries = _read_cache(cache) if cache.exists() and cache.stat().st_mtime_ns > rules else {}
    stats = {file: (root / file).stat() for file in files}
    stale = [file for file in files if _stamp(stats[file]) != (entries[file][:2] if file in entries else None)]
    if stale:
        with ProcessPoolExecutor(os.cpu_count(), initializer=gc.disable) as pool:
            fresh = pool.map(partial(_read_report, root), stale, chunksize=50)
            entries.update({each.file: Cached(*_stamp(stats[each.file]), each) for each in fresh})
        cache.parent.mkdir(exist_ok=True)
        cache.write_bytes(msgspec.json.encode(entries))
    reports = [entries[file].report for file in files]
    add_shared_classes(reports)
    return reports


def _read_cache(cache: Path) -> dict[str, Cached]:
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(cache.read_bytes(), type=dict[str, Cached])
    return {}


def _stamp(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_size, stat.st_mtime_ns


def _read_report(root: Path, file: str) -> Report:
    return report(read_file(root, file))


def _is_helper(file: str, name: str) -> bool:
    return file.startswith("tests/") and not name.startswith(("test_", "__"))


def figures(reports: Iterable[Report]) -> Iterator[str]:
    """Lines that summarise all reports."""
    reports = list(reports)
    sizes = sum((Counter(each.sizes) for each in reports), Counter[str]())
    counts = {measure: sum(len(each.hits[measure]) for each in reports) for measure in GOALS}
    for kind, name in (("page", "pages"), ("docstring", "docstrings"), ("message", "messages")):
        words, hits = sizes[f"{kind} words"], sizes[f"{kind} idioms"]
        mean = sizes[f"{kind} length"] / max(1, sizes[f"{kind} sentences"])
        print_words = f"{name:12}{words:8,} words {1000 * hits / max(1, words):6.1f} idioms in 1,000"
        yield f"{print_words} {mean:6.1f} words a sentence"
    for measure, name in (
        ("sentences", "long sentences in all words"),
        ("summaries", "docstrings with a bad first line"),
        ("participles", "participles of parameters and locals"),
        ("helpers", "test helpers with one word"),
        ("classes", "test classes that share their name"),
    ):
        size = sizes[GOALS[measure][0]]
        yield f"{name:40}{counts[measure]:7,} of {size:8,} {counts[measure] / max(1, size):7.1%}"


def _list_hits(paths: list[str]) -> int:
    files = [os.path.relpath(Path(path).resolve(), ROOT) for path in paths]
    reports = [
        each
        for each in read_reports(ROOT, list_files(ROOT), CACHE)
        if any(each.file == path or each.file.startswith(path + "/") for path in files)
    ]
    hits = sorted(hit for each in reports for measure in each.hits.values() for hit in measure)
    for hit in hits:
        print(f"{hit.file}:{hit.line}: {hit.rule}: {hit.text} -> {hit.instead}")
    return bool(hits)


def main(arguments: list[str] | None = None) -> int:
    """Print figures and excess counts, or the violations in named files."""
    parser = argparse.ArgumentParser(prog="python -m tools.prose", description="Check the ten rules of plain English.")
    parser.add_argument("file", nargs="*", help="list what breaks a rule in these files or directories")
    parser.add_argument(
        "--write", action="store_true", help="lower the limits in tools/prose.toml to the counts of today"
    )
    options = parser.parse_args(arguments)
    if options.file:
        return _list_hits(options.file)
    reports = read_reports(ROOT, list_files(ROOT), CACHE)
    print(*figures(reports), sep="\n")
    (counts, sizes), limits = total(reports), read_limits(LIMITS)
    lower = lowered(counts, sizes, limits)
    if options.write:
        write_limits(LIMITS, lower)
    elif lower != limits:
        print("Counts fell: `python -m tools.prose --write` lowers tools/prose.toml.")
    above = excesses(counts, sizes, lower if options.write else limits or {})
    for each in above:
        print(
            f"{each.area}: {each.number} {each.measure}, at most {each.limit}; "
            f"`python -m tools.prose {each.area}` lists them"
        )
    return bool(above)


if __name__ == "__main__":
    sys.exit(main())
