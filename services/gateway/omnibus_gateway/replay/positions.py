"""The first place in which two runs of an output differ. Pure, no I/O."""

from collections.abc import Sequence

import numpy as np

from omnibus_gateway.dispatch.retention import RecordedChunk


def find_text_position(one: str, other: str) -> int | None:
    """Return the first differing character, or the end of the shorter text; None if both are equal."""
    if one == other:
        return None
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def find_position(recorded_chunks: Sequence[RecordedChunk], now: Sequence[RecordedChunk]) -> str:
    """Describe the first place that differs.

    Empty if only the cuts differ, or only values that are neither text nor arrays.
    """
    for key in dict.fromkeys(key for chunk in (*recorded_chunks, *now) for key in chunk.data):
        one, other = _join_values(recorded_chunks, key), _join_values(now, key)
        if isinstance(one, str) and isinstance(other, str):
            position = find_text_position(one, other)
            if position is not None:
                return f"{key} from character {position} on"
        elif isinstance(one, list) and isinstance(other, list) and one != other:
            pairs = enumerate(zip(one, other, strict=False))
            at = next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))
            return f"{key} from element {at} on"
    return _find_row(*([chunk.array for chunk in side if chunk.array is not None] for side in (recorded_chunks, now)))


def _join_values(chunks: Sequence[RecordedChunk], key: str) -> str | list[object] | None:
    values = [chunk.data[key] for chunk in chunks if key in chunk.data and chunk.array is None]
    if values and all(isinstance(each, str) for each in values):
        return "".join(values)
    if values and all(isinstance(each, list) for each in values):
        return [element for each in values for element in each]
    return None


def _find_row(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> str:
    if not one or not other or not all(each.ndim for each in (*one, *other)):
        return "" if bool(one) == bool(other) else "it holds no rows" if one else "it held no rows"
    try:
        left, right = np.concatenate(one), np.concatenate(other)
    except ValueError:
        return "rows have another shape"
    if left.shape[1:] != right.shape[1:] or left.dtype != right.dtype:
        return f"rows are {right.dtype} {list(right.shape[1:])}, and were {left.dtype} {list(left.shape[1:])}"
    count = min(len(left), len(right))
    unequal = (left[:count] != right[:count]).reshape(count, -1).any(axis=1)
    at = int(unequal.argmax()) if unequal.any() else count
    return f"row {at}" if at < max(len(left), len(right)) else ""
