"""Items, with their arrays, as they cross the socket between a gateway and a worker: by value."""

from collections.abc import Iterable
from math import prod
from typing import Any

import msgspec
import numpy as np

from omnibus.errors import ProtocolError
from omnibus.tensors.handle import ITEMSIZE
from omnibus.tensors.item import Item

#: Dimensions that an array may have.
_MAX_DIMENSIONS = 8


class Array(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An array by value, in C order and the byte order of the machine that both ends share."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class PackedItem(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An ``Item`` as it travels."""

    data: dict[str, Any]
    array: Array | None = None


def pack_items(items: Iterable[Item]) -> tuple[PackedItem, ...]:
    """``items`` as they travel. Raises ``ProtocolError`` for an array of a dtype that may not."""
    return tuple(PackedItem(item.data, None if item.array is None else _pack_array(item.array)) for item in items)


def unpack_items(pieces: Iterable[PackedItem]) -> list[Item]:
    """The items of a message; their arrays are read-only views of it. Raises ``ProtocolError``."""
    return [Item(piece.data, None if piece.array is None else _array_view(piece.array)) for piece in pieces]


def _pack_array(array: np.ndarray) -> Array:
    if array.dtype.name not in ITEMSIZE or array.ndim > _MAX_DIMENSIONS:
        raise ProtocolError(
            f"an array of {array.dtype}, {array.ndim} dimensions, may not travel; use one of {sorted(ITEMSIZE)}"
        )
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return Array(array.dtype.name, array.shape, native.tobytes())


def _array_view(array: Array) -> np.ndarray:
    name, shape = array.dtype, array.shape
    if name not in ITEMSIZE or name == "bfloat16" or len(shape) > _MAX_DIMENSIONS:
        raise ProtocolError(f"an array of {name[:32]!r} with {len(shape)} dimensions may not travel")
    if any(extent < 0 for extent in shape) or prod(shape) * ITEMSIZE[name] != len(array.data):
        raise ProtocolError(f"an array of {name} with shape {shape} is not {len(array.data)} bytes")
    try:
        return np.frombuffer(array.data, np.dtype(name)).reshape(shape)
    except ValueError:  # no elements, and an extent beyond all memory
        raise ProtocolError(f"an array of {name} with shape {shape} is too large") from None
