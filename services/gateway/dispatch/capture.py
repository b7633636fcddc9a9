"""Recorded outputs that nodes pass to each other, kept for replays that begin in the middle: one record per output.

A record is a list of chunks, each its small data and the rows that came with it. As bytes: the length of a head, the
head (JSON), and the arrays one after the other, in little-endian order as they lie in memory.
"""

from collections.abc import Callable, Iterator
from hashlib import sha256
from math import prod
from typing import Any, NamedTuple

import msgspec
import numpy as np

from omnibus.bus.messages import Chunk
from omnibus.errors import ProtocolError
from omnibus.graph import UNREADABLE, Invocation
from omnibus.recording.records import KeptOutput
from omnibus.tensors.client import TensorClient
from omnibus.tensors.handle import ITEMSIZE, Handle
from omnibus.tensors.inline import unpack_tensor
from omnibus.tensors.item import Item
from services.gateway.dispatch.digest import Fingerprint

#: Bytes of one output above which it is not kept.
MAX_OUTPUT_BYTES = 256 << 20

#: Outputs that are not kept: of the size of a model's memory, and made for one reader who asks when it has room.
UNCAPTURED_OUTPUTS = frozenset({"cache"})

_LENGTH_BYTES = 8  # bytes of the head's length


class RecordedChunk(NamedTuple):
    """One chunk; see ``messages.Chunk``."""

    data: dict[str, Any]
    array: np.ndarray | None = None
    last: bool = False
    empty: bool = False


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    data: dict[str, Any] = {}
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    last: bool = False
    empty: bool = False


class OutputCapture:
    """One output of one node, while it comes. ``view`` and ``release`` are the arena's."""

    def __init__(
        self, node: int, output: str, view: Callable[[Handle], np.ndarray], release: Callable[[Handle], None]
    ) -> None:
        self.origin = (node, output)
        self.last: np.ndarray = np.empty(0)  # the array of the last chunk that had one
        self._view = view
        self._release = release
        self._open: dict[Handle, np.ndarray] = {}
        self._pieces: list[RecordedChunk] = []
        self._nbytes = 0
        self._whole = False  # its last chunk came
        self._fit = True  # it can be kept: no chunk was lost, too large, or of a dtype that numpy does not know

    def add_chunk(self, chunk: Chunk) -> None:
        """Keep ``chunk``. Raises as the arena does when its memory is gone."""
        array = None
        if chunk.inline is not None:
            array = np.array(unpack_tensor(chunk.inline))
        elif chunk.handle is not None:
            array = self._read_array(chunk.handle, chunk.rows)
        if array is not None:
            self.last = array
            self._nbytes += array.nbytes
        known = array is None or array.dtype.name in ITEMSIZE
        self._fit = self._fit and known and self._nbytes <= MAX_OUTPUT_BYTES and chunk.seq == len(self._pieces)
        if self._fit:
            self._pieces.append(RecordedChunk(chunk.data, array, chunk.last, chunk.empty))
        else:
            self._pieces.clear()
        if chunk.last:
            self._whole = True
            self.close()

    def _read_array(self, handle: Handle, rows: tuple[int, int] | None) -> np.ndarray:
        if handle not in self._open:
            self._open[handle] = self._view(handle)
        view = self._open[handle]
        if rows is not None:  # the same memory grows with the next chunk
            return np.array(view[rows[0] : rows[1]])
        array = np.array(view)
        del self._open[handle]
        self._release(handle)
        return array

    def restart(self) -> None:
        """The invocation begins again elsewhere."""
        self.close()
        self._pieces.clear()
        self._nbytes, self._whole, self._fit = 0, False, True

    def close(self) -> None:
        """Give memory back."""
        for handle in self._open:
            self._release(handle)
        self._open.clear()

    @property
    def chunks(self) -> list[RecordedChunk] | None:
        """All chunks; None for an output that is not whole, or cannot be kept."""
        return self._pieces if self._whole and self._fit else None

    def to_record(self) -> tuple[KeptOutput, bytes] | None:
        """Return the record of this output, and its bytes; None for one that is not whole, or cannot be kept."""
        chunks = self.chunks
        if chunks is None:
            return None
        body = pack_chunks(chunks)
        fingerprint = Fingerprint()
        for piece in chunks:
            fingerprint.add_item(Item(piece.data, piece.array))
        node, output = self.origin
        digest = sha256(body).hexdigest()
        return KeptOutput(node, output, digest, self._nbytes, len(chunks), fingerprint.hexdigest()), body


def consumed_outputs(invocation: Invocation) -> Iterator[tuple[int, str]]:
    """The outputs that nodes read of each other, but for those that are never kept."""
    found = dict.fromkeys(use for node in invocation.nodes for use in node.uses)
    return (use for use in found if use[1] not in UNCAPTURED_OUTPUTS)


def create_captures(invocation: Invocation, tensors: TensorClient, whole: bool) -> dict[tuple[int, str], OutputCapture]:
    """Captures of what nodes read of each other; if ``whole``, of what the client reads, too."""
    keys = [*consumed_outputs(invocation), *(invocation.outputs if whole else ())]
    return {key: OutputCapture(*key, tensors.view, tensors.release) for key in keys}


def pack_chunks(pieces: list[RecordedChunk]) -> bytes:
    entries = []
    arrays = []
    for piece in pieces:
        array = piece.array
        entries.append(
            _Entry(
                piece.data,
                "" if array is None else array.dtype.name,
                None if array is None else array.shape,
                piece.last,
                piece.empty,
            )
        )
        if array is not None:
            arrays.append(array.tobytes())
    head = msgspec.json.encode(entries)
    return b"".join([len(head).to_bytes(_LENGTH_BYTES, "big"), head, *arrays])


def unpack_chunks(body: bytes) -> list[RecordedChunk]:
    """The pieces of ``pack_chunks``. Raises ``ProtocolError`` for anything else."""
    start = _LENGTH_BYTES + int.from_bytes(body[:_LENGTH_BYTES], "big")
    try:
        entries = msgspec.json.decode(body[_LENGTH_BYTES:start], type=list[_Entry])
        pieces = []
        for entry in entries:
            array = None
            if entry.shape is not None:
                array, start = _unpack_array(body, entry, start)
            pieces.append(RecordedChunk(entry.data, array, entry.last, entry.empty))
    except (*UNREADABLE, ValueError, TypeError, KeyError) as error:
        raise ProtocolError(f"what was kept of an output cannot be read: {error}") from error
    if start != len(body):
        raise ProtocolError(f"what was kept of an output has {len(body)} bytes, and says {start}")
    return pieces


def _unpack_array(body: bytes, entry: _Entry, start: int) -> tuple[np.ndarray, int]:
    size = ITEMSIZE[entry.dtype]
    count = prod(entry.shape or ())
    end = start + size * count
    if count < 0 or end > len(body):
        raise ValueError(f"{entry.dtype} {entry.shape} is more than there is")
    array = np.frombuffer(body, np.dtype(entry.dtype), count, start).reshape(entry.shape or ())
    return array, end
