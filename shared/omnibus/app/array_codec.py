"""Items and their arrays, encoded by value for the gateway-worker socket."""

from collections.abc import Iterable
from math import prod
from typing import Any

import msgspec
import numpy as np

from omnibus.errors import ProtocolError
from omnibus.tensors.handle import ITEMSIZE, Item

#: Most dimensions of an array.
_MAX_DIMENSIONS = 8


class Array(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Array by value, in C order. The byte order is that of the machine, which both ends share."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class PackedItem(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Encoded ``Item``."""

    data: dict[str, Any]
    array: Array | None = None


def pack_items(items: Iterable[Item]) -> tuple[PackedItem, ...]:
    """Encode ``items``. Raises ``ProtocolError`` for an array of an unsupported dtype."""
    return tuple(PackedItem(item.data, None if item.array is None else _pack_array(item.array)) for item in items)


def unpack_items(pieces: Iterable[PackedItem]) -> list[Item]:
    """Decode the items of a message. Their arrays are read-only views of it. Raises ``ProtocolError``."""
    return [Item(piece.data, None if piece.array is None else _array_view(piece.array)) for piece in pieces]


def _pack_array(array: np.ndarray) -> Array:
    if array.dtype.name not in ITEMSIZE or array.ndim > _MAX_DIMENSIONS:
        raise ProtocolError(
            f"cannot send an array of {array.dtype} with {array.ndim} dimensions: use at most {_MAX_DIMENSIONS} "
            f"dimensions and one of {sorted(ITEMSIZE)}"
        )
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return Array(array.dtype.name, array.shape, native.tobytes())


def _array_view(array: Array) -> np.ndarray:
    name, shape = array.dtype, array.shape
    if name not in ITEMSIZE or name == "bfloat16" or len(shape) > _MAX_DIMENSIONS:
        raise ProtocolError(f"cannot receive an array of {name[:32]!r} with {len(shape)} dimensions")
    if any(extent < 0 for extent in shape) or prod(shape) * ITEMSIZE[name] != len(array.data):
        raise ProtocolError(f"an array of {name} with shape {shape} cannot have {len(array.data)} bytes")
    try:
        return np.frombuffer(array.data, np.dtype(name)).reshape(shape)
    except ValueError:  # no elements, and an extent beyond all memory
        raise ProtocolError(f"an array of {name} with shape {shape} is too large") from None
