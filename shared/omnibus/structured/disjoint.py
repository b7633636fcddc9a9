"""Proofs that no value fits two JSON schemas: then ``oneOf`` equals ``anyOf``.

A grammar can express ``anyOf``.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

#: Function that returns the schema that another one refers to, or None if it is unknown.
Resolve = Callable[[Mapping[str, Any]], Any]

_TYPES = ("null", "boolean", "object", "array", "string", "integer", "fraction")
_NAMED = {"number": ("integer", "fraction")}
#: Levels of nested schemas that are examined, and pairs of their alternatives.
_MAX_DEPTH, _MAX_PAIRS = 8, 4096


def find_overlap(branches: Sequence[Any], resolve: Resolve, tag: str = "") -> tuple[int, int] | None:
    """Return the first two ``branches`` that one value may fit, or None.

    Each branch is an object with ``tag``.
    """
    more: list[Any] = [{"required": [tag]}] if tag else []
    for left in range(len(branches)):
        for right in range(left + 1, len(branches)):
            if not _Proof(resolve).differ([branches[left], *more], [branches[right], *more], 0):
                return left, right
    return None


class _Proof:
    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._pairs = 0

    def differ(self, left: list[Any], right: list[Any], depth: int) -> bool:
        """Return whether provably no value fits both ``left`` and ``right``."""
        if depth > _MAX_DEPTH:
            return False
        pairs = product(self._cases(left, depth), self._cases(right, depth))
        return all(self._cases_differ(one, other, depth) for one, other in pairs)

    def _cases(self, schemas: list[Any], depth: int) -> Iterator[list[Mapping[str, Any]]]:
        """Yield conjunctions of schemas, one for each choice of alternatives.

        It yields none if nothing fits ``schemas``.
        """
        plain: list[Mapping[str, Any]] = []
        waiting = list(schemas)
        choices: list[Sequence[Any]] = []
        while waiting:
            schema = waiting.pop()
            if schema is False:
                return
            if not isinstance(schema, Mapping) or len(plain) > _MAX_PAIRS or any(schema is each for each in plain):
                continue
            plain.append(schema)
            waiting += schema.get("allOf") or ()
            if "$ref" in schema:
                waiting.append(self._resolve(schema))
            choices += [schema[name] for name in ("anyOf", "oneOf") if schema.get(name)]
        if not choices or depth >= _MAX_DEPTH or math.prod(map(len, choices)) > 64:
            yield plain
            return
        for choice in product(*choices):
            for case in self._cases(list(choice), depth + 1):
                yield [*plain, *case]

    def _cases_differ(self, left: Any, right: Any, depth: int) -> bool:
        self._pairs += 1
        if self._pairs > _MAX_PAIRS:
            return False
        kinds = _types_of(left) & _types_of(right)
        return all(self._differ_as(kind, left, right, depth) for kind in kinds)

    def _differ_as(self, kind: str, left: Any, right: Any, depth: int) -> bool:
        if self._values_differ(kind, left, right) or self._values_differ(kind, right, left):
            return True
        match kind:
            case "string":
                return _ranges_apart(_length_range(left, "Length"), _length_range(right, "Length"))
            case "integer" | "fraction":
                return _ranges_apart(_number_range(left), _number_range(right))
            case "object":
                return self._objects_differ(left, right, depth)
            case "array":
                return self._arrays_differ(left, right, depth)
        return False

    def _values_differ(self, kind: str, left: Any, right: Any) -> bool:
        """Return whether ``left`` lists its values of ``kind``, and none fits ``right``."""
        values = _listed_values(left)
        if values is None and kind == "boolean":
            values = [True, False]
        if values is None:
            return False
        return not any(_may_fit(value, right) for value in values if kind_of(value) == kind and _may_fit(value, left))

    def _objects_differ(self, left: Any, right: Any, depth: int) -> bool:
        names = dict.fromkeys(name for each in (*left, *right) for name in each.get("required") or ())
        return any(
            self.differ(_property_schemas(left, name), _property_schemas(right, name), depth + 1) for name in names
        ) or _ranges_apart(_length_range(left, "Properties"), _length_range(right, "Properties"))

    def _arrays_differ(self, left: Any, right: Any, depth: int) -> bool:
        own_range, other = _length_range(left, "Items"), _length_range(right, "Items")
        if _ranges_apart(own_range, other):
            return True
        sure = int(min(max(own_range[0], other[0]), 16))
        return any(self.differ(_item_schemas(left, at), _item_schemas(right, at), depth + 1) for at in range(sure))


def kind_of(value: Any) -> str:
    """Return the type of a JSON ``value``; numbers are "integer" or "fraction"."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if value == int(value) else "fraction"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def equal_json(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if kind_of(one) != kind_of(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal_json, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal_json(one[name], other[name]) for name in one)
    return bool(one == other)


def _types_of(schemas: Sequence[Mapping[str, Any]]) -> set[str]:
    kinds = set(_TYPES)
    for schema in schemas:
        if "type" in schema:
            type_names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
            kinds &= {kind for name in type_names for kind in _NAMED.get(name, (name,))}
    values = _listed_values(schemas)
    return kinds if values is None else kinds & set(map(kind_of, values))


def _listed_values(schemas: Sequence[Mapping[str, Any]]) -> list[Any] | None:
    """Return the values of the first ``const`` or ``enum``: None without either."""
    for schema in schemas:
        if "const" in schema:
            return [schema["const"]]
        if "enum" in schema:
            return list(schema["enum"])
    return None


def _may_fit(value: Any, schemas: Sequence[Mapping[str, Any]]) -> bool:
    """Return False only if ``value`` certainly does not fit."""
    kind = kind_of(value)
    if kind not in _types_of(schemas):
        return False
    for schema in schemas:
        allowed_values = _listed_values([schema])
        if allowed_values is not None and not any(equal_json(value, each) for each in allowed_values):
            return False
    if isinstance(value, str):
        low, high, _, _ = _length_range(schemas, "Length")
        return low <= len(value) <= high
    if kind in ("integer", "fraction"):
        return not _ranges_apart((value, value, False, False), _number_range(schemas))
    return True


_Range = tuple[float, float, bool, bool]


def _number_range(schemas: Sequence[Mapping[str, Any]]) -> _Range:
    """Return the least and greatest number, and whether each is excluded."""
    low, high, low_open, high_open = -math.inf, math.inf, False, False
    for schema in schemas:
        for name, is_open in (("minimum", False), ("exclusiveMinimum", True)):
            if name in schema and (schema[name], is_open) > (low, low_open):
                low, low_open = schema[name], is_open
        for name, is_open in (("maximum", False), ("exclusiveMaximum", True)):
            if name in schema and (-schema[name], is_open) > (-high, high_open):
                high, high_open = schema[name], is_open
    return low, high, low_open, high_open


def _length_range(schemas: Sequence[Mapping[str, Any]], of: str) -> _Range:
    low = max((schema.get(f"min{of}", 0) for schema in schemas), default=0)
    return low, min((schema.get(f"max{of}", math.inf) for schema in schemas), default=math.inf), False, False


def _ranges_apart(one: _Range, other: _Range) -> bool:
    """Return whether two ranges share no number, or one is empty."""
    low, high = max(one[0], other[0]), min(one[1], other[1])
    is_open = any((each[2] and each[0] == low) or (each[3] and each[1] == high) for each in (one, other))
    return low > high or (low == high and is_open)


def _property_schemas(schemas: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    property_schemas = []
    for schema in schemas:
        if name in (schema.get("properties") or {}):
            property_schemas.append(schema["properties"][name])
        elif "additionalProperties" in schema and not schema.get("patternProperties"):
            property_schemas.append(schema["additionalProperties"])
    return property_schemas


def _item_schemas(schemas: Sequence[Mapping[str, Any]], at: int) -> list[Any]:
    item_schemas = []
    for schema in schemas:
        before = schema.get("prefixItems") or ()
        if at < len(before):
            item_schemas.append(before[at])
        elif "items" in schema and not isinstance(schema["items"], list):
            item_schemas.append(schema["items"])
    return item_schemas
