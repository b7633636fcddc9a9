"""Comparison of two JSON answers by value: numbers by tolerance, texts by similarity, others by equality."""

from typing import Any

from omnibus.canary.gate import GateRules
from omnibus_gateway.shadow.compare import describe_text_difference

#: Maximum depth of lists and objects; deeper values must be equal.
MAX_DEPTH = 64


def describe_json_difference(where: str, one: Any, other: Any, rules: GateRules, depth: int = 0) -> str:
    """Describe the first difference of two values named ``where``; empty if equal under ``rules``."""
    if type(one) is type(other) and one == other:
        return ""
    if isinstance(one, str) and isinstance(other, str):
        return describe_text_difference(where, one, other, rules)
    if _is_number(one) and _is_number(other):
        return _number_difference(where, float(one), float(other), rules)
    if depth < MAX_DEPTH and isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        differences = (
            describe_json_difference(f"{where}.{key}", one[key], other[key], rules, depth + 1) for key in one
        )
        return next(filter(None, differences), "")
    if depth < MAX_DEPTH and isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        differences = (describe_json_difference(f"{where}[{n}]", *pair, rules, depth + 1) for n, pair in pairs)
        return next(filter(None, differences), "")
    return f"{where} is {_describe(other)}, {_describe(one)} is expected"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number_difference(where: str, one: float, other: float, rules: GateRules) -> str:
    error = abs(other - one) / abs(one) if one else abs(other - one)
    return (
        f"{where}: relative error {error:.2g}, at most {rules.tolerance:g} is expected"
        if error > rules.tolerance
        else ""
    )


def _describe(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with {', '.join(sorted(value)) or 'nothing'}"[:80]
    return f"a list of {len(value)}" if isinstance(value, list) else repr(value)[:80]
