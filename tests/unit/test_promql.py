"""Metrics and labels in PromQL expressions."""

import pytest

from tests.promql import Bad, Matcher, Selector, read_query


def test_metrics_are_told_from_functions_and_words():
    expression = read_query(
        'histogram_quantile(0.99, sum by (le, model) (rate(a_bucket{output="text"}[5m]))) > 1e3 and on () b == 0'
    )

    assert expression.selectors == (Selector("a_bucket", (Matcher("output", "=", "text"),)), Selector("b", ()))
    assert expression.labels == {"le", "model"}


def test_several_matchers_and_variables():
    expression = read_query(
        'sum(rate(a{x=~"$model", y!="a,}{"}[$__rate_interval])) / on (z) group_left (w) b offset 1h30m'
    )

    assert expression.selectors[0].matchers == (Matcher("x", "=~", "$model"), Matcher("y", "!=", "a,}{"))
    assert [selector.name for selector in expression.selectors] == ["a", "b"]
    assert expression.labels == {"z", "w"}


@pytest.mark.parametrize(
    "text", ["sum(a", "a)", "a{b}", "a{b=c}", "a b", "1 + 2", 'a{b="c}', "sum by (x y) (a)", "a + on b"]
)
def test_what_is_no_expression_is_refused(text: str):
    with pytest.raises(Bad):
        read_query(text)


@pytest.mark.parametrize("text", ["rate(a)", "nosuch(a)", "histogram_quantile(a)", "a[5m] + b", "rate(sum(a)[5m])"])
def test_what_prometheus_could_not_compute_is_refused(text: str):
    with pytest.raises(Bad):
        read_query(text)
