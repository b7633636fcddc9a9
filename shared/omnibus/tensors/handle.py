"""The small record that names a tensor: data, never memory and never code."""

from math import prod

import msgspec

from omnibus.errors import ProtocolError

#: Item size in bytes of every dtype that may travel. ``bytes`` are ``uint8`` of one dimension.
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
    """Names ``nbytes`` bytes at ``offset`` of ``arena`` on ``node``, seen as ``shape`` of ``dtype``.

    ``generation`` changes each time the memory is given out again, so that an old handle is an
    error and never somebody else's bytes. ``key`` lets another node read it; 0 where nodes do not pull.
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
    """A small tensor that travels within a message, in C order and little-endian: see ``omnibus.tensors.inline``."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def validate(self) -> "InlineTensor":
        """Raise ``ProtocolError`` unless dtype, shape and data agree."""
        _check_size("an inline tensor", self.dtype, self.shape, len(self.data))
        return self


def _check_size(what: str, dtype: str, shape: tuple[int, ...], nbytes: int) -> None:
    size = ITEMSIZE.get(dtype)
    if size is None:
        raise ProtocolError(f"{what}: dtype {dtype!r} may not travel; use one of {sorted(ITEMSIZE)}")
    if any(extent < 0 for extent in shape) or prod(shape) * size != nbytes:
        raise ProtocolError(f"{what}: shape {shape} of {dtype} is not {nbytes} bytes")
