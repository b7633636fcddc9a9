"""Evaluator of alert expressions over samples of one process. ``tests.pages.alerts`` parses them from PromQL.

It has the part of PromQL that the shipped rules use, with the same results for counters that do not reset. Rates are
over the samples that exist: a counter without an earlier sample began at 0, because it is of this process.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

#: Labels with their values, sorted by name.
Labels = tuple[tuple[str, str], ...]
#: Values by labels.
Vector = dict[Labels, float]


class Snapshot(NamedTuple):
    """Values of metrics at one time, in Unix seconds."""

    at: float
    values: dict[str, Vector]


class Number(msgspec.Struct, frozen=True, omit_defaults=True, tag="number"):
    value: float


class Select(msgspec.Struct, frozen=True, omit_defaults=True, tag="select"):
    """Series of the metric ``name`` whose labels match ``where``: label, operator and value.

    ``range`` is in seconds, 0 for the latest values.
    """

    name: str
    where: tuple[tuple[str, Literal["=", "!=", "=~", "!~"], str], ...] = ()
    range: float = 0.0

    def matches(self, labels: Labels) -> bool:
        """Return whether a series with ``labels`` is selected."""
        values = dict(labels)
        return all(_MATCHES[sign](values.get(label, ""), value) for label, sign, value in self.where)


class FunctionExpression(msgspec.Struct, frozen=True, omit_defaults=True, tag="call"):
    function: Literal["rate", "increase", "abs", "histogram_quantile"]
    arguments: "tuple[Expression, ...]"


class Aggregate(msgspec.Struct, frozen=True, omit_defaults=True, tag="aggregate"):
    function: Literal["sum", "min", "max"]
    by: tuple[str, ...]
    of: "Expression"


class Binary(msgspec.Struct, frozen=True, omit_defaults=True, tag="binary"):
    """Operation on two operands. ``on`` are the labels by which series match, None for all of them.

    With ``added``, many series on the left match one on the right, and get these labels of it.
    """

    operator: Literal["+", "-", "*", "/", ">", ">=", "<", "<=", "==", "!=", "and", "or"]
    left: "Expression"
    right: "Expression"
    on: tuple[str, ...] | None = None
    added: tuple[str, ...] | None = None


Expression = Number | Select | FunctionExpression | Aggregate | Binary

_MATCHES: dict[str, Callable[[str, str], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "=~": lambda text, pattern: re.fullmatch(pattern, text) is not None,
    "!~": lambda text, pattern: re.fullmatch(pattern, text) is None,
}
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda one, other: one / other if other else (math.nan if one == 0 else math.copysign(math.inf, one)),
}
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_REDUCERS: dict[str, Callable[[list[float]], float]] = {"sum": sum, "min": min, "max": max}


def metric_names(expression: Expression) -> Iterator[str]:
    """Yield the metrics that ``expression`` selects."""
    match expression:
        case Select():
            yield expression.name
        case FunctionExpression():
            for argument in expression.arguments:
                yield from metric_names(argument)
        case Aggregate():
            yield from metric_names(expression.of)
        case Binary():
            yield from metric_names(expression.left)
            yield from metric_names(expression.right)


def evaluate(expression: Expression, snapshots: Sequence[Snapshot]) -> Vector:
    """Return the values of ``expression`` at the last of ``snapshots``. A number has no labels."""
    match expression:
        case Number():
            return {(): expression.value}
        case Select():
            series = snapshots[-1].values.get(expression.name, {})
            return {labels: value for labels, value in series.items() if expression.matches(labels)}
        case FunctionExpression():
            return _call(expression, snapshots)
        case Aggregate():
            return _aggregate(expression, evaluate(expression.of, snapshots))
        case Binary():
            return _combine(expression, evaluate(expression.left, snapshots), evaluate(expression.right, snapshots))


def _call(call: FunctionExpression, snapshots: Sequence[Snapshot]) -> Vector:
    last = call.arguments[-1]
    if isinstance(last, Select) and last.range:
        return _increase(last, snapshots, per_second=call.function == "rate")
    values = evaluate(last, snapshots)
    if call.function == "abs":
        return {labels: abs(value) for labels, value in values.items()}
    [part] = evaluate(call.arguments[0], snapshots).values()
    return _quantiles(part, values)


def _increase(selector: Select, snapshots: Sequence[Snapshot], *, per_second: bool) -> Vector:
    last = snapshots[-1]
    first = next(each for each in snapshots if each.at >= last.at - selector.range)
    if first is last:
        return {}
    before, seconds = first.values.get(selector.name, {}), last.at - first.at if per_second else 1.0
    series = evaluate(Select(selector.name, selector.where), snapshots)
    return {labels: (value - before.get(labels, 0.0)) / seconds for labels, value in series.items()}


def _quantiles(part: float, buckets: Vector) -> Vector:
    """Return a quantile of each histogram, whose cumulative ``buckets`` have the label ``le``."""
    histograms: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in buckets.items():
        rest = tuple(pair for pair in labels if pair[0] != "le")
        histograms.setdefault(rest, []).append((float(dict(labels)["le"]), count))
    return {labels: _quantile(part, sorted(pairs)) for labels, pairs in histograms.items()}


def _quantile(part: float, buckets: Sequence[tuple[float, float]]) -> float:
    rank = part * buckets[-1][1]
    lower, below = 0.0, 0.0
    for bound, count in buckets:
        if count >= rank and count > below:
            return lower if bound == math.inf else lower + (bound - lower) * (rank - below) / (count - below)
        lower, below = bound, count
    return math.nan  # no values


def _aggregate(aggregate: Aggregate, values: Vector) -> Vector:
    groups: dict[Labels, list[float]] = {}
    for labels, value in values.items():
        groups.setdefault(_restrict(labels, aggregate.by), []).append(value)
    reduce = _REDUCERS[aggregate.function]
    return {labels: reduce(members) for labels, members in groups.items()}


def _combine(binary: Binary, left: Vector, right: Vector) -> Vector:
    if binary.operator in ("and", "or"):
        return _join(binary, left, right)
    pairs = _match_pairs(binary, left, right)
    if binary.operator in _ARITHMETIC:
        compute = _ARITHMETIC[binary.operator]
        return {labels: compute(one, other) for labels, one, other in pairs}
    holds = _COMPARISONS[binary.operator]
    return {labels: one for labels, one, other in pairs if holds(one, other)}


def _join(binary: Binary, left: Vector, right: Vector) -> Vector:
    keys_of_left, keys_of_right = ({_match_key(binary, each) for each in side} for side in (left, right))
    if binary.operator == "and":
        return {labels: value for labels, value in left.items() if _match_key(binary, labels) in keys_of_right}
    added = {labels: value for labels, value in right.items() if _match_key(binary, labels) not in keys_of_left}
    return left | added


def _match_pairs(binary: Binary, left: Vector, right: Vector) -> Iterator[tuple[Labels, float, float]]:
    """Yield the labels of the result and both values of series that match, or each of them and a number."""
    if isinstance(binary.right, Number):
        yield from ((labels, value, binary.right.value) for labels, value in left.items())
        return
    by_key = {_match_key(binary, labels): (labels, value) for labels, value in right.items()}
    for labels, value in left.items():
        key = _match_key(binary, labels)
        if key in by_key:
            others, other = by_key[key]
            if binary.added is not None:
                key = tuple(sorted((dict(labels) | dict(_restrict(others, binary.added))).items()))
            yield key, value, other


def _match_key(binary: Binary, labels: Labels) -> Labels:
    return labels if binary.on is None else _restrict(labels, binary.on)


def _restrict(labels: Labels, names: Sequence[str]) -> Labels:
    return tuple(pair for pair in labels if pair[0] in names)
