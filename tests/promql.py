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


class Asked(NamedTuple):
    """All that an expression names."""

    selectors: tuple[Selector, ...]
    labels: frozenset[str]  # that it groups or joins by


class Bad(ValueError):
    """The text is not an expression, or names no metric."""


def read(text: str) -> Asked:
    """Raises ``Bad``."""
    for name, value in _VARIABLES.items():
        text = text.replace(name, value)
    found: list[Expr] = []
    try:
        promql_parser.walk(promql_parser.parse(text), found.append)
    except ValueError as error:
        raise Bad(f"{text!r}: {error}") from None
    selectors = tuple(_selector(each) for each in found if isinstance(each, VectorSelector))
    if not selectors:
        raise Bad(f"{text!r} names no metric")
    return Asked(selectors, frozenset(label for each in found for label in _grouped_by(each)))


def _selector(found: VectorSelector) -> Selector:
    matchers = tuple(
        Matcher(each.name, next(sign for op, sign in _SIGNS if op == each.op), each.value)
        for each in found.matchers.matchers
    )
    return Selector(found.name or "", matchers)


def _grouped_by(found: Expr) -> Iterator[str]:
    if isinstance(found, AggregateExpr | BinaryExpr) and found.modifier is not None:
        if isinstance(found, AggregateExpr):
            yield from found.modifier.labels
        else:
            yield from found.modifier.group_labels or ()
            yield from found.modifier.matching.labels if found.modifier.matching else ()
