"""Retention of running invocations' outputs, to restart a lost stage alone.

The gateway receives the chunks that nodes send to each other as well, as small records. Their tensors stay in the
arena after their last reader, until the invocation ends. An output read by a stage on another executor is worth
retaining: otherwise the death of that stage would make the producer run again. A talker resumes after its own codes,
so they are always retained. The bytes are bounded here, and the sidecar drops retained tensors before it rejects an
allocation.

Outputs between nodes can also be captured, for replays that begin mid-graph. There is one record per output: a list of
chunks, each with its small data and its rows. Encoded, a record is the length of a head, the head (JSON), and the
arrays in order, little-endian as they lie in memory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from math import prod
from typing import Any, NamedTuple

import msgspec
import numpy as np

from omnibus.bus.messages import Chunk
from omnibus.errors import OmnibusError, ProtocolError
from omnibus.graph import UNREADABLE, Invocation
from omnibus.recording.records import KeptOutput
from omnibus.tensors.client import TensorClient
from omnibus.tensors.handle import ITEMSIZE, Handle, Item, unpack_tensor
from omnibus_gateway.dispatch.streams import MAX_RESUMED_VALUES, Fingerprint

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


#: Node and output.
Key = tuple[int, str]

#: Latents that a denoiser sends every few steps to resume from. Only the gateway reads them.
CHECKPOINT = "checkpoint"
#: Codes of a talker: small, and always the point to resume from. Its chunks hold a list of this name.
CODES = "codes"
#: Prefix of unit tasks that send checkpoints.
_CHECKPOINTED_TASK_PREFIX = "denoise-"
#: Never retained: as large as a model's memory, and made for one reader that requests it.
UNRETAINED_OUTPUTS = frozenset({"cache"})
#: Bytes that count for a chunk without a tensor, and for a number of a list in it.
RECORD_BYTES, NUMBER_BYTES = 1024, 32
#: Shapes of invocations that are cached.
MAX_SHAPES = 1024
#: Policies: nothing; outputs read on another executor; all outputs that nodes read of each other.
OFF, AUTO, ALL = "off", "auto", "all"


class OutputRecord:
    """The chunks of one output in order; only the last one of a checkpoint."""

    __slots__ = ("chunks", "expected", "handles", "intact", "latest", "nbytes", "seen", "whole")

    def __init__(self, latest: bool = False) -> None:
        self.chunks: list[Chunk] = []
        self.handles: dict[Handle, None] = {}
        self.seen: set[Handle] = set()  # those that this gateway has released or retained
        self.whole = False  # its last chunk arrived
        self.intact = True  # no chunk is missing
        self.latest = latest
        self.nbytes = 0
        self.expected = 0

    def joined_list(self, key: str) -> list[Any]:
        """Return the concatenated lists of this name: ``MAX_RESUMED_VALUES`` numbers at most."""
        if not self.intact:
            return []
        values = [value for chunk in self.chunks for value in chunk.data.get(key, ())]
        return values[: MAX_RESUMED_VALUES // max(1, _numbers_in(values[:1]))]

    def restart(self) -> None:
        """Prepare for its node, which restarts from the retained chunks."""
        self.expected, self.whole, self.intact = 0, False, True


class OutputRetention:
    """Records outputs of all invocations of one gateway, up to ``limit`` bytes."""

    def __init__(self, tensors: TensorClient, policy: str = AUTO, limit: int = 1 << 28) -> None:
        self._tensors = tensors
        self.limit = limit
        self.policy = policy
        self.nbytes = 0
        self._known: dict[object, tuple[Key, ...]] = {}

    def retained_outputs(self, invocation: Invocation) -> tuple[Key, ...]:
        """Return the outputs worth retaining of nodes that begin in this attempt; cached per shape."""
        shape = tuple([(node.task, node.uses) for node in invocation.nodes])
        attempt = (invocation.attempts, invocation.attempt) if invocation.attempts else ()
        key = (self.policy, shape, invocation.route, invocation.outputs, attempt)
        output_keys = self._known.get(key)
        if output_keys is None:
            if len(self._known) >= MAX_SHAPES:
                self._known.clear()
            output_keys = self._known[key] = tuple(self._find_retained(invocation))
        return output_keys

    def _find_retained(self, invocation: Invocation) -> Iterator[Key]:
        if self.policy == OFF or (len(invocation.nodes) == 1 and not _leaves_checkpoints(invocation, 0)):
            return
        route, chosen_uses = invocation.route, set()
        for reader, node in enumerate(invocation.nodes):
            if _leaves_checkpoints(invocation, reader) and invocation.starts_node(reader):
                yield reader, CHECKPOINT
            for use in node.uses:
                near = self.policy != ALL and use[1] != CODES and route[use[0]] == route[reader]
                if not (near or use in chosen_uses or use[1] in UNRETAINED_OUTPUTS or use in invocation.outputs):
                    chosen_uses.add(use)
                    if invocation.starts_node(use[0]):
                        yield use

    def open_record(self, key: Key) -> OutputRecord:
        return OutputRecord(latest=key[1] == CHECKPOINT)

    def record_chunk(self, record: OutputRecord, chunk: Chunk) -> bool:
        """Record ``chunk``; returns True if the record is intact."""
        in_order = chunk.seq == record.expected
        record.expected += 1
        if not (record.intact and in_order and self._retain_chunk(record, chunk)):
            self._mark_broken(record)
        elif not (record.latest and chunk.handle is None):
            if record.latest:
                self._replace_checkpoint(record, chunk)
            record.chunks.append(chunk)
        if chunk.handle is not None and chunk.handle not in record.seen:
            record.seen.add(chunk.handle)
            self._tensors.release(chunk.handle)  # this gateway's read is declined
        record.whole |= chunk.last
        return record.intact

    def _retain_chunk(self, record: OutputRecord, chunk: Chunk) -> bool:
        handle = chunk.handle
        if handle in record.handles:
            return True
        if handle is not None:
            size = handle.nbytes
        else:
            size = RECORD_BYTES + NUMBER_BYTES * _numbers_in(chunk.data.get(CODES, ()))
        if chunk.inline is not None:
            size += len(chunk.inline.data)
        if self.nbytes + size > self.limit:
            return False
        if handle is not None:
            try:
                self._tensors.retain(handle)
            except OmnibusError:  # it was already freed
                return False
            record.handles[handle] = None
            record.seen.add(handle)
        record.nbytes += size
        self.nbytes += size
        return True

    def _replace_checkpoint(self, record: OutputRecord, chunk: Chunk) -> None:
        """Drop the checkpoint before ``chunk``."""
        for handle in [each for each in record.handles if each != chunk.handle]:
            self._drop_handle(record, handle)
        record.chunks.clear()

    def _drop_handle(self, record: OutputRecord, handle: Handle) -> None:
        del record.handles[handle]
        record.nbytes -= handle.nbytes
        self.nbytes -= handle.nbytes
        self._tensors.drop(handle)

    def _mark_broken(self, record: OutputRecord) -> None:
        record.intact = False
        self.drop_record(record)

    def is_usable(self, record: OutputRecord | None) -> bool:
        """Return True if all received chunks of an output are still readable."""
        if record is None or not record.intact:
            return False
        try:
            for handle in record.handles:
                self._tensors.check_handle(handle)
        except OmnibusError:  # the arena reclaimed the memory, or the producer died before it was complete
            return False
        return True

    def drop_record(self, record: OutputRecord) -> None:
        """Drop the chunks of ``record``, which no node will resume from."""
        for handle in list(record.handles):
            self._drop_handle(record, handle)
        self.nbytes -= record.nbytes
        record.nbytes = 0
        record.chunks.clear()

    def close_records(self, records: Mapping[Key, OutputRecord]) -> None:
        """Uncount the records of an ended invocation; its end frees their memory."""
        for record in records.values():
            self.nbytes -= record.nbytes
            record.nbytes = 0


def _numbers_in(values: Sequence[Any]) -> int:
    """Count the numbers of a list of numbers or of equal lists."""
    return len(values) * (len(values[0]) if values and type(values[0]) is list else 1)


def _leaves_checkpoints(invocation: Invocation, node: int) -> bool:
    return invocation.nodes[node].task.startswith(_CHECKPOINTED_TASK_PREFIX)


def affected_nodes(
    invocation: Invocation, lost_nodes: Iterable[int], finished_nodes: Iterable[int], usable: Mapping[Key, bool]
) -> frozenset[int]:
    """Return the nodes that restart when ``lost_nodes`` nodes do.

    These are the dependents that are not ``finished_nodes``, and the producers whose outputs are not ``usable``.
    """
    again, done_nodes = set(lost_nodes), set(finished_nodes)
    while True:
        more = set()
        for index, node in enumerate(invocation.nodes):
            if index in again:
                more |= {use[0] for use in node.uses if not usable.get(use, False)}
            elif index not in done_nodes and any(source in again for source, _ in node.uses):
                more.add(index)
        if more <= again:
            return frozenset(again)
        again |= more
