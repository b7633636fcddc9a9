"""From what travels (``Item``: small JSON and an array) to what a reader sees, and back.

A part of type ``T`` travels as its fields when ``T`` is a pydantic model (at most one of them an array,
annotated ``Tensor``), as itself when it is a dict, and else as ``{"value": ...}``.
"""

from collections.abc import Sequence
from typing import Any, get_origin

import numpy as np
from pydantic import BaseModel, TypeAdapter

from omnibus.errors import ProtocolError
from omnibus.tensors.item import Item

#: Field that holds a plain value.
KEY = "value"


class Part(BaseModel):
    """Base of typed stream parts. ``array`` names the field that holds the item's tensor."""

    model_config = {"arbitrary_types_allowed": True, "extra": "ignore"}

    @classmethod
    def join(cls, parts: Sequence[Any]) -> Any:
        """The whole that ``await`` gives; by default the list of parts."""
        return list(parts)


def part(element: Any, item: Item) -> Any:
    """One part of a stream of ``element``."""
    if isinstance(element, type) and issubclass(element, BaseModel):
        named = item.data if item.array is None else {**item.data, "array": item.array}
        return element.model_validate(named)
    if item.array is not None:
        return item.array
    if _is_dict(element) or KEY not in item.data:
        return item.data
    return item.data[KEY]


def join(element: Any, parts: list[Any], transformed: bool) -> Any:
    """All parts of a stream as one value: text is joined, arrays are put one after the other."""
    if not transformed and isinstance(element, type) and issubclass(element, Part):
        return element.join(parts)
    if parts and all(isinstance(each, str) for each in parts):
        return "".join(parts)
    if not parts and element is str:
        return ""
    if parts and all(isinstance(each, np.ndarray) for each in parts):
        return np.concatenate(parts)
    return parts


def whole(element: Any, items: Sequence[Item], shown: str) -> Any:
    """The one value of a tensor or value output."""
    if not items:
        raise ProtocolError(f"{shown} ended without a value")
    value = part(element, items[0])
    if isinstance(value, np.ndarray) or element is Any or not isinstance(element, type):
        return value
    return (
        value
        if isinstance(value, BaseModel) or items[0].array is not None
        else _adapter(element).validate_python(value)
    )


def item(element: Any, value: Any) -> Item:
    """What travels for ``value`` of type ``element``."""
    if isinstance(value, np.ndarray):
        return Item({}, value)
    if isinstance(value, BaseModel):
        array = getattr(value, "array", None)
        held = isinstance(array, np.ndarray)
        return Item(value.model_dump(mode="json", exclude={"array"} if held else None), array if held else None)
    if _is_dict(element) or (element is Any and isinstance(value, dict)):
        return Item(value)
    return Item({KEY: TypeAdapter(type(value)).dump_python(value, mode="json")})


def _is_dict(element: Any) -> bool:
    return element is dict or get_origin(element) is dict


_adapters: dict[Any, TypeAdapter] = {}


def _adapter(element: Any) -> TypeAdapter:
    if element not in _adapters:
        _adapters[element] = TypeAdapter(element)
    return _adapters[element]
