"""Comparison of two runs of one invocation per stage: bits, tolerance for tensors, similarity of texts.

As in ``omnibus_gateway.dispatch.streams``, the division of an output into chunks does not matter. JSON answers are
compared by value: numbers by tolerance, texts by similarity, others by equality.
"""

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from math import inf, sqrt
from typing import Any, NamedTuple

import numpy as np

from omnibus.canary.candidate import GateRules
from omnibus.graph import GraphNode
from omnibus_gateway.dispatch.retention import RecordedChunk

#: Outputs by node and name.
Outputs = Mapping[tuple[int, str], Sequence[RecordedChunk]]

#: Words of a text, or elements of a list, whose similarity is computed; the rest must be equal.
MAX_COMPARED_WORDS = 1000
#: Elements of tensors per comparison step, which bounds the memory.
_BLOCK_ELEMENTS = 1 << 20


class OutputDifference(NamedTuple):
    """Output that differs by more than the tolerance; ``what`` describes the difference."""

    node: int
    component: str
    output: str
    what: str


class _JoinedOutput(NamedTuple):
    """A whole output: texts and lists joined by key, other values per chunk, and arrays in order."""

    texts: dict[str, str]
    lists: dict[str, list[Any]]
    rest: list[dict[str, Any]]
    arrays: list[np.ndarray]


def find_differences(
    nodes: Sequence[GraphNode],
    control: Outputs,
    candidate: Outputs,
    rules: GateRules,
    requested_keys: Sequence[tuple[int, str]] = (),
) -> list[OutputDifference]:
    """Find outputs of ``candidate`` that differ from ``control``, in graph order.

    The first difference causes the later ones. An output in ``requested_keys`` also differs if only one run has all of
    it. Other outputs are skipped in that case: a stage that no longer needs an output may stop reading it at any time.
    """
    differences = []
    common_keys = control.keys() & candidate.keys()
    for node, output in sorted(common_keys | ((control.keys() ^ candidate.keys()) & set(requested_keys))):
        if (node, output) not in common_keys:
            description = _MISSING[(node, output) in control]
        else:
            description = describe_difference(control[node, output], candidate[node, output], rules)
        if description:
            differences.append(OutputDifference(node, nodes[node].component, output, description))
    return differences


_CLOSING = ("finish_reason", "usage")
#: Descriptions by presence in the control.
_MISSING = {True: "it is incomplete", False: "it is complete, but incomplete in the version that serves"}


def has_content(chunks: Sequence[RecordedChunk]) -> bool:
    """Return True if an output has content; the closing chunk does not count."""
    return any(
        (chunk.array is not None and chunk.array.size > 0)
        or any(key not in _CLOSING and value not in ("", [], None) for key, value in chunk.data.items())
        for chunk in chunks
    )


def count_comparable(control: Mapping[Any, Sequence[RecordedChunk]], candidate: Mapping[Any, Any]) -> int:
    """Count outputs in both runs that have content in either."""
    return sum(has_content(control[key]) or has_content(candidate[key]) for key in control.keys() & candidate.keys())


def describe_difference(control: Sequence[RecordedChunk], candidate: Sequence[RecordedChunk], rules: GateRules) -> str:
    """Describe the difference of two outputs; empty if they are equal under ``rules``."""
    one, other = _join_output(control), _join_output(candidate)
    rates = [sorted({chunk.data["rate"] for chunk in side if "rate" in chunk.data}) for side in (control, candidate)]
    if rates[0] != rates[1]:
        return f"{rates[1]} samples/s, {rates[0]} is expected"
    return _text_difference(one, other, rules) or _array_difference(one.arrays, other.arrays, rules)


def _join_output(chunks: Sequence[RecordedChunk]) -> _JoinedOutput:
    output = _JoinedOutput({}, {}, [], [])
    for chunk in chunks:
        if chunk.array is not None:
            if chunk.array.size:
                output.arrays.append(chunk.array)
            continue
        rest = {}
        for key, value in chunk.data.items():
            if isinstance(value, str):
                output.texts[key] = output.texts.get(key, "") + value
            elif isinstance(value, list):
                output.lists.setdefault(key, []).extend(value)
            else:
                rest[key] = value
        if rest:
            output.rest.append(rest)
    return output


def _text_difference(one: _JoinedOutput, other: _JoinedOutput, rules: GateRules) -> str:
    if (one.texts, one.lists) == (other.texts, other.lists):
        return "" if one.rest == other.rest else "other values"
    for key in sorted(one.texts.keys() | other.texts.keys()):
        difference = describe_text_difference(key, one.texts.get(key, ""), other.texts.get(key, ""), rules)
        if difference:
            return difference
    for key in sorted(one.lists.keys() | other.lists.keys()):
        score = _similarity(one.lists.get(key, []), other.lists.get(key, []))
        if score < rules.score:
            return f"{key} is similar by {score:.2f}, {rules.score:.2f} is expected"
    return ""


def describe_text_difference(name: str, one: str, other: str, rules: GateRules) -> str:
    """Describe the difference of two texts; empty if they are similar enough for ``rules``."""
    score = _similarity(one.split(), other.split())
    if one == other or (score >= rules.score and rules.score < 1):
        return ""
    return f"{name} is similar by {score:.2f}, {rules.score:.2f} is expected"


def _similarity(one: Sequence[Any], other: Sequence[Any]) -> float:
    """Return the similarity by Ratcliff and Obershelp, from 0 to 1.

    This is twice the number of common elements, in order, over the number of all elements.
    """
    if one == other:
        return 1.0
    if any(not isinstance(each, str | int) for each in (*one, *other)):
        return 0.0
    if one[MAX_COMPARED_WORDS:] != other[MAX_COMPARED_WORDS:]:
        return 0.0
    return SequenceMatcher(None, one[:MAX_COMPARED_WORDS], other[:MAX_COMPARED_WORDS], autojunk=False).ratio()


def _array_difference(one: Sequence[np.ndarray], other: Sequence[np.ndarray], rules: GateRules) -> str:
    shapes = [
        (sum(len(each) for each in arrays if each.ndim), arrays[0].shape[1:]) if arrays else ()
        for arrays in (one, other)
    ]
    if shapes[0] != shapes[1]:
        return f"a tensor of {_shape_text(shapes[1])}, {_shape_text(shapes[0])} is expected"
    error = _relative_error(one, other)
    return f"relative error {error:.2g}, at most {rules.tolerance:g} is expected" if error > rules.tolerance else ""


def _shape_text(shape: Sequence[Any]) -> str:
    return f"{shape[0]} rows of {list(shape[1])}" if shape else "no rows"


def _relative_error(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
    """Return the norm of the difference over that of ``one``.

    Infinite if only ``one`` is 0, or if values that are not finite differ.
    """
    flat_one, flat_other = (
        np.concatenate([each.reshape(-1) for each in arrays]) if arrays else np.empty(0) for arrays in (one, other)
    )
    difference = scale = 0.0
    for start in range(0, len(flat_one), _BLOCK_ELEMENTS):
        block, against = (each[start : start + _BLOCK_ELEMENTS].astype(np.float64) for each in (flat_one, flat_other))
        whole = np.isfinite(block)
        same_holes = np.array_equal(whole, np.isfinite(against))
        if not same_holes or not np.array_equal(block[~whole], against[~whole], equal_nan=True):
            return inf
        difference += float(np.square(block[whole] - against[whole]).sum())
        scale += float(np.square(block[whole]).sum())
    if not difference:
        return 0.0
    return sqrt(difference / scale) if scale else inf


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
