"""Expressions of alerts, over samples of a gateway: with the results that Prometheus defines for them."""

import math

import promql_parser
import pytest

from omnibus_gateway.console.alerts import read_rules
from omnibus_gateway.console.expressions import Snapshot, Vector, evaluate, metric_names
from tests.pages.alerts import convert


def series(**values: float) -> Vector:
    """Series with the labels ``model`` and ``code`` from names such as ``a_ok``."""
    return {
        (("code", name.partition("_")[2]), ("model", name.partition("_")[0])): value for name, value in values.items()
    }


def histogram(*counts: tuple[str, float]) -> Vector:
    return {(("le", bound), ("model", "a")): count for bound, count in counts}


START = Snapshot(1000.0, {"requests_total": series(a_ok=10, a_bad=0), "wanted": series(a_x=2, b_x=1)})
LATER = Snapshot(
    1060.0,
    {
        "requests_total": series(a_ok=40, a_bad=6, b_ok=30),
        "wanted": series(a_x=2, b_x=1),
        "up": series(a_x=2, b_x=0),
        "empty": {},
        "seconds_bucket": histogram(("0.1", 0), ("1.0", 50), ("5.0", 90), ("+Inf", 100)),
    },
)


def compute(text: str, *snapshots: Snapshot) -> dict[str, float]:
    """Values by the values of their labels, in the order of the labels' names."""
    vector = evaluate(convert(promql_parser.parse(text)), snapshots or (START, LATER))
    return {",".join(value for _, value in labels): value for labels, value in vector.items()}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("up", {"x,a": 2, "x,b": 0}),
        ('up{model="a"}', {"x,a": 2}),
        ('requests_total{code=~"o.|x"}', {"ok,a": 40, "ok,b": 30}),
        ('requests_total{code!~"ok",model!="b"}', {"bad,a": 6}),
        ('requests_total{code=~"o"}', {}),
        ("rate(requests_total[1m])", {"ok,a": 0.5, "bad,a": 0.1, "ok,b": 0.5}),
        ("sum by (model) (increase(requests_total[5m]))", {"a": 36, "b": 30}),
        ("increase(requests_total[30s])", {}),
        ("max(up) - min(up)", {"": 2}),
        ("up > 0", {"x,a": 2}),
        ("up >= 2", {"x,a": 2}),
        ("up == 0", {"x,b": 0}),
        ("up != 0", {"x,a": 2}),
        ("wanted - up > 0", {"x,b": 1}),
        ("wanted - empty", {}),
        ("wanted / up", {"x,a": 1, "x,b": math.inf}),
        ("abs(up - wanted)", {"x,a": 0, "x,b": 1}),
        ("requests_total / on (model) group_left () sum by (model) (requests_total)", {"ok,a": 40 / 46, "bad,a": 6 / 46, "ok,b": 1}),
        ('sum by (code) (up) * on (code) group_left (model) wanted{model="a"}', {"x,a": 4}),
        ("wanted > 1 or up", {"x,a": 2, "x,b": 0}),
        ("wanted and on (model) up > 0", {"x,a": 2}),
        ("sum(wanted) > 0 and on () sum(up) == 3", {}),
        ("sum(wanted) > 0 and on () sum(up) == 2", {"": 3}),
        ("histogram_quantile(0.5, sum by (le, model) (seconds_bucket))", {"a": 1.0}),
        ("histogram_quantile(0.7, sum by (le, model) (seconds_bucket))", {"a": 3.0}),
        ("histogram_quantile(0.99, seconds_bucket)", {"a": 5.0}),
        ("nothing > 0", {}),
    ],
)  # fmt: skip
def test_an_expression_has_the_value_that_prometheus_defines(text: str, values: dict[str, float]):
    assert compute(text) == pytest.approx(values)


def test_a_share_of_nothing_and_a_quantile_of_nothing_compare_to_nothing():
    idle = Snapshot(
        1060.0, {"requests_total": series(a_ok=10, a_bad=0), "seconds_bucket": histogram(("1.0", 0), ("+Inf", 0))}
    )

    assert compute("rate(requests_total[1m]) / rate(requests_total[1m]) > 0", START, idle) == {}
    assert compute("histogram_quantile(0.5, seconds_bucket) > 0", START, idle) == {}


def test_a_rate_needs_two_samples():
    assert compute("rate(requests_total[1m])", START) == {}


@pytest.mark.parametrize("text", ["1 - up", "sum without (model) (up)", "-up", "delta(up[1m])", "avg(up)", "up % 2"])
def test_an_expression_that_the_gateway_cannot_evaluate_is_not_converted(text: str):
    with pytest.raises(ValueError, match=r"cannot evaluate|Invalid enum"):
        convert(promql_parser.parse(text))


@pytest.mark.parametrize("rule", read_rules(), ids=lambda rule: rule.name)
def test_a_shipped_rule_is_evaluated_and_names_what_to_do(rule):
    names = set(metric_names(rule.expression))
    values = dict.fromkeys(names, histogram(("+Inf", 1.0)))

    evaluate(rule.expression, [Snapshot(1000.0, values), Snapshot(1060.0, values)])

    assert names
    assert rule.runbook
    assert not any("](" in each for each in rule.runbook)
