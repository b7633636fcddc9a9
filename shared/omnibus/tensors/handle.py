"""The small record that identifies a tensor: data, never memory and never code.

Dtypes of tensors in numpy.

Small tensors within messages, for readers on other nodes: a separate pull costs more.

For readers on the same node, tensors are always sent through the arena.

A value that tasks exchange: small JSON, and its tensor.
"""

from math import prod
from typing import Any, NamedTuple

import msgspec
import numpy as np

from omnibus.errors import ProtocolError

#: Item size in bytes of every supported dtype. ``bytes`` are ``uint8`` of one dimension.
ITEMSIZE = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}


class Handle(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tensor: ``nbytes`` bytes at ``offset`` of ``arena`` on ``node``, with shape and dtype.

    ``generation`` changes each time the memory is allocated again, so that an old handle is an error and never shows
    other data. ``key`` allows another node to read it; 0 if nodes do not pull.
    """

    id: int
    node: str
    arena: str
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    generation: int
    key: int = 0

    def validate(self) -> "Handle":
        """Raise ``ProtocolError`` unless dtype, shape and nbytes agree."""
        _check_size(f"handle {self.id}", self.dtype, self.shape, self.nbytes)
        return self


class InlineTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A small tensor within a message, in C order and little-endian.

    See ``omnibus.tensors.handle``.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def validate(self) -> "InlineTensor":
        """Raise ``ProtocolError`` unless dtype, shape and data agree."""
        _check_size("an inline tensor", self.dtype, self.shape, len(self.data))
        return self


def _check_size(description: str, dtype: str, shape: tuple[int, ...], nbytes: int) -> None:
    size = ITEMSIZE.get(dtype)
    if size is None:
        raise ProtocolError(f"{description} has the unsupported dtype {dtype!r}; use one of {sorted(ITEMSIZE)}")
    if any(extent < 0 for extent in shape) or prod(shape) * size != nbytes:
        raise ProtocolError(f"{description}: shape {shape} of {dtype} is not {nbytes} bytes")


#: numpy has no bfloat16: such a tensor is shown as its raw 16-bit words.
_NUMPY_NAME = {"bfloat16": "uint16"}


def numpy_dtype(dtype: str) -> np.dtype:
    """Return the numpy dtype for a handle's ``dtype``; ``uint16`` for ``bfloat16``."""
    return np.dtype(_NUMPY_NAME.get(dtype, dtype))


def pack_tensor(array: np.ndarray) -> InlineTensor:
    """Return ``array`` as bytes of a message; its dtype must be in ``handle.ITEMSIZE``."""
    return InlineTensor(array.dtype.name, array.shape, array.tobytes()).validate()


def unpack_tensor(tensor: InlineTensor) -> np.ndarray:
    """Return the read-only array of ``tensor``. Raises ``ProtocolError`` if dtype, shape and data disagree."""
    tensor.validate()
    return np.frombuffer(tensor.data, numpy_dtype(tensor.dtype)).reshape(tensor.shape)


#: In the first chunk of a stream of rows that starts again: the number of its first row.
RESUMED_AT = "resumed_at"


class Item(NamedTuple):
    """One value, or one chunk of a stream.

    ``data`` is small JSON. ``array`` is its tensor: a read-only numpy view of the arena, without a copy and valid until
    the job ends. If producer and consumer run in one process, it is the producer's own array.
    """

    data: dict[str, Any]
    array: np.ndarray | None = None


class JoinedText(Item):
    """A chunk of text, joined from pieces with ``cuts`` characters each."""

    cuts: tuple[int, ...]

    def __new__(cls, data: dict[str, Any], cuts: tuple[int, ...]) -> "JoinedText":
        text = super().__new__(cls, data)
        text.cuts = cuts
        return text
