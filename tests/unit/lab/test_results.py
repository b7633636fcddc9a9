"""Results of the lab are newer than their code. The page shows them exactly."""

import sys
from math import inf
from pathlib import Path

import pytest

from tests.lab.digest import code_digest
from tests.lab.experiment import PLANNED, Findings, Margin, margin_of
from tests.lab.page import write_page
from tests.lab.registry import EXPERIMENTS, PAPERS
from tests.lab.results import (
    LabResult,
    plot_name,
    read_results,
    results_directory,
    stale_experiments,
    write_results,
)

ROOT = Path(__file__).parents[3]


def test_every_result_was_measured_with_the_code_as_it_is():
    results = read_results(results_directory())

    assert results
    assert [name for name in stale_experiments(results_directory()) if name in results] == [], "run `make lab`"


def test_the_page_is_what_the_results_say():
    assert Path(ROOT, "docs/lab.md").read_text() == write_page(read_results(results_directory())), "run `make lab`"


def test_every_experiment_has_the_papers_figure_and_ours_and_its_conditions():
    results = read_results(results_directory())
    for name, result in results.items():
        summary = result.findings
        assert EXPERIMENTS[name].paper in PAPERS
        assert summary.conditions, name
        assert summary.claims, name
        assert all(claim.what and claim.paper and claim.ours for claim in summary.claims), name
        assert summary.tables, name
        for number in range(len(summary.plots)):
            assert (results_directory() / plot_name(name, number + 1)).is_file()


def test_all_experiments_take_less_than_half_an_hour_on_two_cores():
    results = read_results(results_directory())

    assert sum(result.seconds for result in results.values()) / 2 < 30 * 60


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A package of two modules, of which one imports the other."""
    room = tmp_path / "measured"
    room.mkdir()
    (room / "__init__.py").write_text("")
    (room / "one.py").write_text("from measured.two import value\n")
    (room / "two.py").write_text('"""Two."""\n\n\ndef value():\n    """The value."""\n    return 1\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("tests.lab.digest.MEASURED", ("measured",))
    yield room
    for name in [name for name in sys.modules if name.partition(".")[0] == "measured"]:
        del sys.modules[name]


def _compute_digest() -> str:
    from tests.lab import digest

    for function in (digest._module_file, digest._parse, digest._body_digest):
        function.cache_clear()
    return code_digest("measured.one")


def test_a_digest_follows_what_imported_code_does_and_not_what_is_said_of_it(package: Path):
    before, two = _compute_digest(), package / "two.py"

    two.write_text('"""Other words."""\n\ndef value():  # a comment\n    return 1\n')
    assert _compute_digest() == before

    two.write_text("def value():\n    return 2\n")
    assert _compute_digest() != before


def test_results_of_experiments_that_are_gone_are_removed(tmp_path: Path):
    name = next(iter(EXPERIMENTS))
    (tmp_path / "gone.json").write_text("{}")

    write_results(tmp_path, {name: LabResult("0", 1.0, Findings(("a",), ()))})

    assert [file.name for file in tmp_path.iterdir()] == [f"{name}.json"]
    assert name in stale_experiments(tmp_path)


def make_result(**margins: float) -> LabResult:
    found = tuple(Margin(where, "the rule", ratio) for where, ratio in margins.items())
    return LabResult("0", 1.0, Findings(("as agreed",), (), margins=found))


def test_the_page_names_where_plans_lose():
    page = write_page({"loads": make_result(small=1.25, large=0.91, even=0.999)})

    assert "| small | the rule | 1.25x |" in page
    _, lost = page.split("### Where plans do not win")
    assert "- loads, large: 0.91x of the rule" in lost
    assert "even" not in lost.partition("##")[0]


def test_a_page_on_which_plans_never_lose_says_so():
    assert "no other system serves more" in write_page({"loads": make_result(small=1.0)})


def test_a_margin_is_over_the_best_other_system():
    assert margin_of("here", {PLANNED: 6.0, "a": 2.0, "b": 4.0}) == Margin("here", "b", 1.5)
    assert margin_of("here", {PLANNED: 6.0, "a": 0.0}).ratio == inf
