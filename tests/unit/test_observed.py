"""The dashboards and alerts as files: generated from their description, complete, and each alert with a runbook."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import omnibus.store  # noqa: F401 it has an error of its own
from omnibus.errors import OmnibusError
from tests import observed, promql

ROOT = Path(__file__).parents[2]
RULES = [rule for group in observed.read_alerts().values() for rule in group]


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dashboards", observed.HERE / "dashboards.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def list_anchors(page: Path) -> set[str]:
    """Return the headings of a page as links name them."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def list_errors(of: type[OmnibusError] = OmnibusError) -> set[type[OmnibusError]]:
    """Return all errors that clients may get; the planner defines others."""
    subclasses = [kind for kind in of.__subclasses__() if kind.__module__.startswith("omnibus.")]
    return {of}.union(*(list_errors(kind) for kind in subclasses))


def test_the_dashboards_are_what_their_description_makes_of_them():
    expected_files = load_generator().files()
    actual_files = {file.name: file.read_text() for file in (observed.HERE / "grafana/dashboards").iterdir()}

    assert actual_files == expected_files, f"run {sys.executable} deploy/observability/dashboards.py"


@pytest.mark.parametrize("name", observed.read_dashboards())
def test_panels_of_a_dashboard_lie_side_by_side(name: str):
    panels = observed.read_dashboards()[name]["panels"]
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]

    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)


@pytest.mark.parametrize(
    "text",
    [text for only in ("", observed.VLLM, observed.LINKS) for text in observed.read_expressions(only).values()],
)
def test_every_expression_can_be_read(text: str):
    assert promql.read_query(text).selectors


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do(rule):
    page, _, anchor = rule["annotations"]["runbook"].partition("#")

    assert anchor == rule["alert"].lower()
    assert anchor in list_anchors(ROOT / page)
    assert rule["annotations"]["summary"]
    assert rule["labels"]["severity"] in ("page", "ticket")


def test_alerts_have_names_of_their_own():
    names = [rule["alert"] for rule in RULES]

    assert len(set(names)) == len(names)


def test_the_runbook_has_no_alert_that_is_gone():
    page = (ROOT / "docs/operations.md").read_text()

    assert set(re.findall(r"^### (Omnibus\w+)$", page, re.MULTILINE)) == {rule["alert"] for rule in RULES}


def test_errors_are_those_that_are_our_fault():
    [rule] = [rule for rule in RULES if rule["alert"] == "OmnibusErrors"]
    [matcher] = promql.read_query(rule["expr"]).selectors[0].matchers
    left_out = {kind.code for kind in list_errors() if re.fullmatch(matcher.value, kind.code)}

    assert matcher.sign == "!~"
    assert left_out == {kind.code for kind in list_errors() if kind.status < 500}
    assert re.fullmatch(matcher.value, "ok")


def test_a_tenant_at_its_limit_wakes_nobody():
    [rule] = [rule for rule in RULES if rule["alert"] == "OmnibusRejects"]
    [matcher] = promql.read_query(rule["expr"]).selectors[0].matchers
    of_tenants = ("queue", "turn", "rate", "concurrent", "gpu_seconds")

    assert (matcher.label, matcher.sign) == ("reason", "=~")
    assert [reason for reason in of_tenants if re.fullmatch(matcher.value, reason)] == []
    assert all(re.fullmatch(matcher.value, reason) for reason in ("gateway", "executors"))
    assert {rule["labels"]["severity"] for rule in observed.read_alerts()["omnibus-tenants"]} == {"ticket"}


def test_what_is_missing_is_found():
    metrics = {"a": [{"x": "1"}]}

    assert observed.find_unanswered({"fine": 'sum by (x, instance) (a{x=~"."})'}, metrics) == []
    assert observed.find_unanswered({"p": 'a{y="1"}', "q": "b", "r": "sum by (z) (a)"}, metrics) == [
        "p: a has no label y",
        "q: nobody emits b",
        "r: nothing in it has a label z",
    ]
