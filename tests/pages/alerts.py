"""The gateway's copy of the alert rules: parsed expressions, and what their runbook in ``docs/operations.md`` says."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import promql_parser
from promql_parser import (
    AggModifierType,
    AggregateExpr,
    BinaryExpr,
    BinModifier,
    Call,
    Expr,
    MatrixSelector,
    NumberLiteral,
    ParenExpr,
    VectorSelector,
)

from omnibus_gateway.console import expressions
from omnibus_gateway.console.alerts import Rule
from tests import observed
from tests.promql import make_selector

RUNBOOK = Path(__file__).parents[2] / "docs/operations.md"
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_EMPHASIS = re.compile(r"(?<![\w*])\*([^*]+)\*")


def make_page() -> str:
    """Return the text of ``alerts.json``."""
    runbook = RUNBOOK.read_text()
    rules = [_make_rule(rule, runbook) for group in observed.read_alerts().values() for rule in group]
    return msgspec.json.format(msgspec.json.encode(rules), indent=1).decode() + "\n"


def _make_rule(rule: dict[str, Any], runbook: str) -> Rule:
    name = rule["alert"]
    return Rule(
        name=name,
        severity=rule["labels"]["severity"],
        summary=rule["annotations"]["summary"],
        text=" ".join(rule["expr"].split()),
        expression=convert(promql_parser.parse(rule["expr"])),
        for_seconds=_read_seconds(rule["for"]),
        runbook=tuple(_read_paragraphs(runbook, name)),
    )


def _read_seconds(text: str) -> float:
    return 0.0 if text == "0m" else promql_parser.parse_duration(text).total_seconds()


def _read_paragraphs(runbook: str, name: str) -> list[str]:
    """Return the paragraphs and items of a section, without links; items begin with a dash."""
    section = runbook.partition(f"### {name}\n")[2].partition("\n#")[0].strip()
    plain = _EMPHASIS.sub(r"\1", _LINK.sub(r"\1", section))
    return [" ".join(each.split()) for each in re.split(r"\n\n|\n(?=- )", plain)]


def convert(node: Expr) -> expressions.Expression:
    """Convert a parsed expression. Raises ``ValueError`` for what the gateway cannot evaluate."""
    make = _CONVERTERS.get(type(node))
    if make is None:
        raise ValueError(f"the gateway cannot evaluate {node}")
    return make(node)


def _builtin(node: Expr) -> Any:
    return msgspec.to_builtins(convert(node))


def _convert_call(node: Call) -> expressions.FunctionExpression:
    fields = {"type": "call", "function": node.func.name, "arguments": [_builtin(each) for each in node.args]}
    return msgspec.convert(fields, expressions.FunctionExpression)


def _convert_selector(node: VectorSelector, seconds: float) -> expressions.Select:
    name, matchers = make_selector(node)
    return msgspec.convert(
        {"type": "select", "name": name, "where": [list(each) for each in matchers], "range": seconds},
        expressions.Select,
    )


def _convert_aggregate(node: AggregateExpr) -> expressions.Aggregate:
    if node.modifier is not None and node.modifier.type != AggModifierType.By:
        raise ValueError(f"the gateway cannot evaluate {node}: use `by`")
    labels = sorted(node.modifier.labels) if node.modifier is not None else []
    fields = {"type": "aggregate", "function": str(node.op), "by": labels, "of": _builtin(node.expr)}
    return msgspec.convert(fields, expressions.Aggregate)


def _convert_binary(node: BinaryExpr) -> expressions.Binary:
    if isinstance(node.lhs, NumberLiteral):
        raise ValueError(f"the gateway cannot evaluate {node}: write the number on the right")
    fields = {"type": "binary", "operator": str(node.op), "left": _builtin(node.lhs), "right": _builtin(node.rhs)}
    if node.modifier is not None:
        fields |= _matching_fields(node.modifier)
    return msgspec.convert(fields, expressions.Binary)


def _matching_fields(modifier: BinModifier) -> dict[str, Any]:
    many_to_one = "ManyToOne" in str(modifier.card)
    return {
        "on": sorted(modifier.matching.labels) if modifier.matching is not None else None,
        "added": sorted(modifier.group_labels or ()) if many_to_one else None,
    }


_CONVERTERS: dict[type[Expr], Callable[[Any], expressions.Expression]] = {
    ParenExpr: lambda node: convert(node.expr),
    NumberLiteral: lambda node: expressions.Number(node.val),
    VectorSelector: lambda node: _convert_selector(node, 0.0),
    MatrixSelector: lambda node: _convert_selector(node.vector_selector, node.range.total_seconds()),
    Call: _convert_call,
    AggregateExpr: _convert_aggregate,
    BinaryExpr: _convert_binary,
}
