"""Conversion between items (``Item``: small JSON and an array) and the values that readers get.

A pydantic model is sent as its fields; at most one of them is an array, called ``array``. A dict is sent unchanged, and
other values as ``{"value": ...}``. A dict with a key ``value`` is also wrapped, so that only wrapped values are
unwrapped.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_origin

import numpy as np
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from omnibus.errors import ProtocolError, StageFailed
from omnibus.tensors.item import Item

#: Field that holds a plain value.
KEY = "value"


class Part(BaseModel):
    """Base of typed stream parts. ``array`` is the field for the item's tensor."""

    model_config = {"arbitrary_types_allowed": True, "extra": "ignore"}

    if not TYPE_CHECKING:  # checkers see a class's own ``join``, and without it, awaiting a stream of it gives a list

        @classmethod
        def join(cls, parts: Sequence[Any]) -> Any:
            """Return the result of ``await``; by default the list of parts."""
            return list(parts)


def decode_part(element: Any, item: Item) -> Any:
    """Return one part of a stream of ``element``. Raises ``StageFailed`` for another type."""
    if item.array is None:
        return _validate_type(element, _unwrap_typed(element, item.data))
    if _is_model(element):
        return _validate_type(element, {**item.data, "array": item.array})
    return item.array


def join_parts(element: Any, parts: list[Any], transformed: bool) -> Any:
    """Join all parts of a stream: texts and arrays are concatenated."""
    if not transformed and isinstance(element, type) and issubclass(element, Part):
        whole: Any = element
        return whole.join(parts)
    if not parts:
        return "" if element is str and not transformed else parts
    if all(isinstance(each, str) for each in parts):
        return "".join(parts)
    if (
        all(isinstance(each, np.ndarray) and each.ndim for each in parts)
        and len({each.shape[1:] for each in parts}) == 1
    ):
        return np.concatenate(parts)
    return parts


def decode_value(element: Any, items: Sequence[Item], name: str) -> Any:
    """Return the only value of a tensor or value output."""
    if not items:
        raise ProtocolError(f"{name} ended without a value")
    return decode_part(element, items[0])


def encode_item(value: Any) -> Item:
    """Return the item for ``value``. Raises ``StageFailed`` if it cannot be JSON."""
    if isinstance(value, np.ndarray):
        return Item({}, value)
    array = getattr(value, "array", None) if isinstance(value, BaseModel) else None
    if not isinstance(array, np.ndarray):
        data = _to_json(value)
        return Item(data if isinstance(data, dict) and KEY not in data else {KEY: data})
    return Item(_to_json(value, {"array"}), array)


def unwrap_value(data: dict[str, Any]) -> Any:
    """Return the value in ``data``, whose type is unknown."""
    return data[KEY] if len(data) == 1 and KEY in data else data


def _unwrap_typed(element: Any, data: dict[str, Any]) -> Any:
    value = unwrap_value(data)
    if value is data or not (_is_model(element) or _is_dict(element)):
        return value
    return value if type(value) is dict and KEY in value else data  # engines write a model or dict unwrapped


def _to_json(value: Any, exclude: set[str] | None = None) -> Any:
    if type(value) is str:
        return value
    try:
        data = to_jsonable_python(value, exclude=exclude, fallback=_convert_number)
    except (PydanticSerializationError, ValueError, TypeError) as error:
        raise StageFailed(f"a value of type {type(value).__name__} cannot be JSON: {error}") from error
    if not _is_finite(data):
        raise StageFailed(f"a value of type {type(value).__name__} cannot be JSON: its numbers must be finite")
    return data


def _is_finite(data: Any) -> bool:
    if isinstance(data, float):
        return math.isfinite(data)
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return all(map(_is_finite, inner))


def _convert_number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot travel as JSON; an array needs an output annotated `Tensor`")


def _is_model(element: Any) -> bool:
    return isinstance(element, type) and issubclass(element, BaseModel)


def _is_dict(element: Any) -> bool:
    return element is dict or get_origin(element) is dict


def _validate_type(element: Any, value: Any) -> Any:
    if element is Any or type(value) is element:
        return value
    try:
        return type_adapter(element).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise StageFailed(
            f"a task returned a value of another type than declared: {where or 'value'} ({first['msg']})"
        ) from error


_adapters: dict[Any, TypeAdapter[Any]] = {}


def type_adapter(element: Any) -> TypeAdapter[Any]:
    """Return the validator of a type, which is cached."""
    if element not in _adapters:
        _adapters[element] = TypeAdapter(element)
    return _adapters[element]
