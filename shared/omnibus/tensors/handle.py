"""The small record that identifies a tensor: data, never memory and never code."""

from math import prod

import msgspec

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

    See ``omnibus.tensors.inline``.
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
