"""Selectors and grouping labels of a PromQL expression.

Selectors include their matchers.
"""

from collections.abc import Iterator
from typing import NamedTuple

import promql_parser
from promql_parser import AggregateExpr, BinaryExpr, Expr, MatchOp, VectorSelector

#: Grafana's own variables, and their substitutes.
_VARIABLES = {"$__rate_interval": "1m", "$__interval": "1m", "$__range": "1h"}
_SIGNS = [(MatchOp.Equal, "="), (MatchOp.NotEqual, "!="), (MatchOp.Re, "=~"), (MatchOp.NotRe, "!~")]


class Matcher(NamedTuple):
    label: str
    sign: str
    value: str


class Selector(NamedTuple):
    """``name{label="value"}``."""

    name: str
    matchers: tuple[Matcher, ...]


class QueryNames(NamedTuple):
    """All that an expression names."""

    selectors: tuple[Selector, ...]
    labels: frozenset[str]  # that it groups or joins by


class Bad(ValueError):
    """The text is not an expression, or names no metric."""


def read_query(text: str) -> QueryNames:
    """Raises ``Bad``."""
    for name, value in _VARIABLES.items():
        text = text.replace(name, value)
    nodes: list[Expr] = []
    try:
        promql_parser.walk(promql_parser.parse(text), nodes.append)
    except ValueError as error:
        raise Bad(f"{text!r}: {error}") from None
    selectors = tuple(make_selector(each) for each in nodes if isinstance(each, VectorSelector))
    if not selectors:
        raise Bad(f"{text!r} names no metric")
    return QueryNames(selectors, frozenset(label for each in nodes for label in _grouped_by(each)))


def make_selector(node: VectorSelector) -> Selector:
    """Return the metric and the matchers of a parsed selector."""
    matchers = tuple(
        Matcher(each.name, next(sign for op, sign in _SIGNS if op == each.op), each.value)
        for each in node.matchers.matchers
    )
    return Selector(node.name or "", matchers)


def _grouped_by(node: Expr) -> Iterator[str]:
    if isinstance(node, AggregateExpr | BinaryExpr) and node.modifier is not None:
        if isinstance(node, AggregateExpr):
            yield from node.modifier.labels
        else:
            yield from node.modifier.group_labels or ()
            yield from node.modifier.matching.labels if node.modifier.matching else ()
