"""Memory for one tensor, for its producer."""

from math import isfinite, prod
from typing import NamedTuple, Protocol

import numpy as np

from omnibus.errors import ProtocolError
from omnibus.tensors.handle import ITEMSIZE, Handle


class GrantedBlock(NamedTuple):
    """A block that the sidecar granted; ``key`` as in ``Handle``."""

    id: int
    generation: int
    offset: int
    key: int


class Producer(Protocol):
    """The client that was granted a block."""

    node: str

    def seal(self, handle: Handle) -> None: ...

    def discard(self, handle: Handle) -> None: ...


class Block:
    """Memory that its producer fills. ``array`` is writable until ``seal`` or ``discard``.

    ``handle`` may be sent before the block is sealed (a tensor that grows row by row).
    """

    __slots__ = ("_client", "array", "handle")

    def __init__(self, client: Producer, handle: Handle, array: np.ndarray) -> None:
        self._client = client
        self.handle = handle
        self.array = array

    def seal(self) -> Handle:
        """Mark all bytes as written: from now on the tensor survives its producer."""
        self._client.seal(self.handle)
        return self.handle

    def discard(self) -> None:
        """Release the memory without sending it."""
        self._client.discard(self.handle)


class BlockMemory(Protocol):
    """The arena of a block."""

    name: str

    def writable_array(self, handle: Handle) -> np.ndarray: ...


def make_block(
    client: Producer, arena: BlockMemory, grant: GrantedBlock, nbytes: int, shape: tuple[int, ...], dtype: str
) -> Block:
    """Return the first ``nbytes`` of a granted block as a tensor."""
    block, generation, offset, key = grant
    handle = Handle(block, client.node, arena.name, offset, nbytes, dtype, shape, generation, key)
    return Block(client, handle, arena.writable_array(handle))


def check_request(shape: tuple[int, ...], dtype: str, readers: int, deadline: float, wait: float) -> int:
    """Return the bytes of such a tensor. Raises ``ProtocolError`` for an unsupported dtype, or numbers out of range."""
    size = ITEMSIZE.get(dtype)
    if size is None:
        raise ProtocolError(f"an array of {dtype!r} cannot be sent; convert it to one of {sorted(ITEMSIZE)}")
    if any(extent < 0 for extent in shape):
        raise ProtocolError(f"a tensor cannot have the shape {shape}")
    if not (0 <= readers < 1 << 16 and isfinite(deadline) and isfinite(wait)):
        raise ProtocolError(f"{readers} readers, deadline {deadline} or wait {wait} is out of range")
    return prod(shape) * size
