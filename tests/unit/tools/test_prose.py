"""Figures of plain English, and the ratchet that keeps them from rising."""

from collections import Counter
from pathlib import Path

import pytest

from tools import prose
from tools.naming import read_names
from tools.prose_texts import read_file, read_source

SIZES = {"docs/a.md": Counter(words=1000)}


def count_idioms(number: int) -> dict[str, Counter[str]]:
    return {"docs/a.md": Counter(dict.fromkeys(prose.GOALS, 0) | {"idioms": number})}


def test_a_page_without_a_line_may_have_three_idioms_in_a_thousand_words():
    assert prose.excesses(count_idioms(3), SIZES, {}) == []
    assert prose.excesses(count_idioms(4), SIZES, {}) == [prose.Excess("docs/a.md", "idioms", 4, 3)]


def test_a_count_must_not_rise_above_its_line():
    limits = {"docs/a.md": {"idioms": 10}}

    assert prose.excesses(count_idioms(10), SIZES, limits) == []
    assert prose.excesses(count_idioms(11), SIZES, limits) == [prose.Excess("docs/a.md", "idioms", 11, 10)]


@pytest.mark.parametrize(
    ("before", "now", "after"), [(10, 8, 8), (10, 12, 10), (10, 3, None), (0, 12, None), (None, 9, 9)]
)
def test_writing_only_lowers_limits(before: int | None, now: int, after: int | None):
    limits = None if before is None else {"docs/a.md": {"idioms": before}}

    lower = prose.lowered(count_idioms(now), SIZES, limits)

    assert lower == ({"docs/a.md": {"idioms": after}} if after else {})


def test_the_line_of_a_page_that_is_gone_is_removed():
    assert prose.lowered(count_idioms(8), SIZES, {"docs/a.md": {"idioms": 8}, "docs/b.md": {"idioms": 9}}) == {
        "docs/a.md": {"idioms": 8}
    }


def test_limits_are_read_as_they_were_written(tmp_path: Path):
    limits = {"docs/a.md": {"idioms": 4, "sentences": 7}, "tests": {"helpers": 9}}

    prose.write_limits(tmp_path / "limits.toml", limits)

    assert prose.read_limits(tmp_path / "limits.toml") == limits
    assert prose.read_limits(tmp_path / "none.toml") is None


@pytest.mark.parametrize(
    ("file", "area"),
    [("docs/a.md", "docs/a.md"), ("shared/omnibus/bus/nats.py", "shared/omnibus"), ("tests/unit/test_a.py", "tests")],
)
def test_a_file_is_counted_with_its_page_or_package(file: str, area: str):
    assert prose.area(file) == area


def test_helpers_with_one_word_and_shared_classes_of_tests_are_listed():
    source = "class Town: ...\ndef send(): ...\ndef send_chat(): ...\ndef test_sending(): ...\n"
    reports = [prose.report(read_source(f"tests/{name}.py", source)) for name in ("test_a", "test_b")]
    reports.append(prose.report(read_source("services/a/b.py", source)))

    prose.add_shared_classes(reports)

    assert [hit.text for hit in reports[0].hits["helpers"]] == ["send"]
    assert [hit.text for hit in reports[1].hits["classes"]] == ["Town"]
    assert reports[0].sizes["helper_functions"] == 2
    assert reports[2].hits["helpers"] == reports[2].hits["classes"] == []


def test_figures_are_of_pages_docstrings_and_messages(tmp_path: Path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/a.md").write_text("Somebody sends a picture to the gateway.\n")
    reports = [prose.report(read_file(tmp_path, "docs/a.md"))]
    prose.add_shared_classes(reports)

    [pages, *_] = prose.figures(reports)

    assert pages.split() == ["pages", "7", "words", "285.7", "idioms", "in", "1,000", "7.0", "words", "a", "sentence"]


def test_a_file_that_has_changed_is_read_again(tmp_path: Path):
    page, cache = tmp_path / "README.md", tmp_path / "build/cache.json"
    page.write_text("Somebody sends a picture.\n")
    before = prose.read_reports(tmp_path, prose.list_files(tmp_path), cache)
    from_cache = prose.read_reports(tmp_path, ["README.md"], cache)
    page.write_text("You send an image.\n")

    after = prose.read_reports(tmp_path, ["README.md"], cache)

    assert len(before[0].hits["idioms"]) == 2
    assert from_cache == before
    assert after[0].hits["idioms"] == []


def test_names_of_tests_are_read_too(tmp_path: Path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text("def send(): ...\n\n\ndef test_sending(): ...\n")

    assert read_names(tmp_path).functions == []
    assert read_names(tmp_path, trees=("tests",)).functions == [("tests/test_a.py", "send")]
