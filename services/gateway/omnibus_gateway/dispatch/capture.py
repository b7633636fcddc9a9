"""Capture of outputs between nodes, for replays that begin mid-graph.

There is one record per output: a list of chunks, each with its small data and its rows. Encoded, a record is the length
of a head, the head (JSON), and the arrays in order, little-endian as they lie in memory.
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
from omnibus_gateway.dispatch.digest import Fingerprint

#: Bytes above which an output is not captured.
MAX_OUTPUT_BYTES = 256 << 20

#: Outputs that are not captured: as large as a model's memory, and made for one reader that requests them.
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
    """Capture of one output of one node while it arrives. ``view`` and ``release`` are the arena's."""

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
        self._whole = False  # its last chunk arrived
        self._fit = True  # it can be recorded: no chunk was lost, too large, or of a dtype unknown to numpy

    def add_chunk(self, chunk: Chunk) -> None:
        """Record ``chunk``. Raises as the arena does when its memory was freed."""
        array = None
        if chunk.inline is not None:
            array = np.array(unpack_tensor(chunk.inline))
        elif chunk.handle is not None:
            array = self._read_array(chunk.handle, chunk.rows)
        if array is not None:
            self.last = array
            self._nbytes += array.nbytes
        is_known = array is None or array.dtype.name in ITEMSIZE
        self._fit = self._fit and is_known and self._nbytes <= MAX_OUTPUT_BYTES and chunk.seq == len(self._pieces)
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
        if rows is not None:  # the next chunk extends the same memory
            return np.array(view[rows[0] : rows[1]])
        array = np.array(view)
        del self._open[handle]
        self._release(handle)
        return array

    def restart(self) -> None:
        """Discard all chunks, because the invocation restarts elsewhere."""
        self.close()
        self._pieces.clear()
        self._nbytes, self._whole, self._fit = 0, False, True

    def close(self) -> None:
        """Release the open tensors."""
        for handle in self._open:
            self._release(handle)
        self._open.clear()

    @property
    def chunks(self) -> list[RecordedChunk] | None:
        """All chunks; None if the output is incomplete or cannot be recorded."""
        return self._pieces if self._whole and self._fit else None

    def to_record(self) -> tuple[KeptOutput, bytes] | None:
        """Return the record and bytes of this output; None if ``chunks`` is."""
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
    """Return the outputs that nodes read of each other and may capture."""
    output_uses = dict.fromkeys(use for node in invocation.nodes for use in node.uses)
    return (use for use in output_uses if use[1] not in UNCAPTURED_OUTPUTS)


def create_captures(invocation: Invocation, tensors: TensorClient, whole: bool) -> dict[tuple[int, str], OutputCapture]:
    """Create captures of outputs between nodes; if ``whole``, also of the client's outputs."""
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
    """Decode the chunks of ``pack_chunks``. Raises ``ProtocolError`` for anything else."""
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
        raise ProtocolError(f"a captured output cannot be decoded: {error}") from error
    if start != len(body):
        raise ProtocolError(f"a captured output has {len(body)} bytes, but its head describes {start}")
    return pieces


def _unpack_array(body: bytes, entry: _Entry, start: int) -> tuple[np.ndarray, int]:
    size = ITEMSIZE[entry.dtype]
    count = prod(entry.shape or ())
    end = start + size * count
    if count < 0 or end > len(body):
        raise ValueError(f"{entry.dtype} {entry.shape} exceeds the captured bytes")
    array = np.frombuffer(body, np.dtype(entry.dtype), count, start).reshape(entry.shape or ())
    return array, end
