"""Edges of a node: ordered inputs from other nodes, and numbered chunks of its outputs.

Outputs go to local jobs, other executors and the gateway.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from omnibus.bus import messages
from omnibus.bus.coalescer import Outbox
from omnibus.bus.messages import Chunk, Hop
from omnibus.errors import OmnibusError, SequenceGap
from omnibus.executor.runner import Item
from omnibus.graph import Invocation
from omnibus.metrics import TRANSFER
from omnibus.tensors.handle import Handle, pack_tensor
from omnibus.tensors.protocol import Block


class ChannelChunk(NamedTuple):
    """A chunk as it arrived: from the bus with a handle, or from this process with its array."""

    seq: int
    item: Item
    handle: Handle | None = None
    rows: tuple[int, int] | None = None
    last: bool = False
    empty: bool = False


class Channel:
    """Chunks of one output of one producer, in order."""

    __slots__ = ("_arrived", "_closed", "_expected", "_failure", "_key", "_task", "_waiter", "began")

    def __init__(self, task: str, key: tuple[int, str]) -> None:
        self._task = task
        self._key = key
        self.began = 0.0  # arrival of the first chunk, Unix seconds
        self._arrived: deque[ChannelChunk] = deque()
        self._expected = 0
        self._closed = False
        self._failure: OmnibusError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def add_chunk(self, piece: ChannelChunk) -> None:
        """Add a chunk. A repeated end is harmless; a gap fails the consumer."""
        if self._closed:
            return
        if piece.seq != self._expected:
            node, output = self._key
            gap = f"chunk {piece.seq} arrived instead of {self._expected}"
            self.fail(SequenceGap(f"{self._task}: {output} of node {node}: {gap}"))
            return
        if not self._expected:
            self.began = time.time()
        self._expected += 1
        self._closed = piece.last
        self._arrived.append(piece)
        self._wake_reader()

    def fail(self, error: OmnibusError) -> None:
        self._failure = error
        self._closed = True
        self._wake_reader()

    async def next_chunk(self) -> ChannelChunk | None:
        """Return the next chunk, or None after the last one."""
        while not self._arrived:
            if self._failure is not None:
                raise self._failure
            if self._closed:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._arrived.popleft()

    def _wake_reader(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


#: Most characters and pieces of text in one chunk.
MAX_JOINED_CHARS, MAX_JOINED_PIECES = 2048, 64
_GROWING_TYPES = (str, list)
#: Sends an encoded chunk to the gateway, with low priority.
Record = Callable[[Invocation, bytes], None]


class Sibling(Protocol):
    """Another node of the same invocation in this process."""

    def feed_input(self, node: int, output: str, piece: ChannelChunk) -> None: ...


class OutputSource:
    """The node that produces outputs, and the outbox for its messages."""

    __slots__ = ("first", "index", "invocation", "outbox")

    def __init__(self, invocation: Invocation, index: int, outbox: Outbox) -> None:
        self.invocation = invocation
        self.index = index
        self.outbox = outbox
        self.first = 0.0  # time of its first output, Unix seconds

    def send_retained(self, invocation: Invocation, chunk: bytes) -> None:
        """Send ``chunk`` at once: there are few, and a node that moves repeats its work after the last one that
        arrived."""
        self.outbox.send(invocation.reply, chunk)


class OutputReaders(NamedTuple):
    """Readers of an output outside of this process.

    ``edges`` are the subjects of executors. ``reads`` is the number of reads, including the gateway's. ``targets`` are
    the names of the readers for metrics. ``far`` are the subjects on other nodes, including the gateway's, with
    ``far_reads`` of the reads.
    """

    edges: tuple[str, ...]
    reads: int
    gateway: bool
    targets: tuple[str, ...]
    far: frozenset[str] = frozenset()
    far_reads: int = 0


class NodeOutput:
    """One output of a node: its readers, and the amount sent."""

    __slots__ = (
        "_edges",
        "_far",
        "_far_reads",
        "_gateway",
        "_held",
        "_held_chars",
        "_inline",
        "_joins",
        "_local",
        "_name",
        "_pieces",
        "_record",
        "_seconds",
        "_seq",
        "_source",
        "_targets",
        "closed",
        "moved",
        "readers",
    )

    def __init__(
        self,
        source: OutputSource,
        name: str,
        local: Sequence[Sibling],
        readers: OutputReaders,
        record: Record | None = None,
        inline: int = 0,
    ) -> None:
        """``record`` also receives each chunk, for the gateway, which retains it.

        Readers on other nodes get tensors of up to ``inline`` bytes within their chunks.
        """
        self._source = source
        self._name = name
        self._local = local
        self._edges = readers.edges
        self._gateway = readers.gateway
        self._targets = readers.targets
        self._record = record
        self._far = readers.far
        self._far_reads = readers.far_reads
        self._inline = inline if readers.far else 0
        self._seq = 0
        self._held: list[dict[str, Any]] = []  # pieces of text to send, and the number of their characters
        self._held_chars = 0
        self._joins = readers.gateway and not (local or readers.edges or record)
        self._pieces = 0  # number of tensors written, in ``_seconds``
        self._seconds = 0.0
        self.readers = readers.reads
        self.moved = 0  # bytes written
        self.closed = False

    @property
    def is_local(self) -> bool:
        """True if all readers are in this process."""
        return not (self._edges or self._gateway)

    def count_reads(self, nbytes: int) -> int:
        """Return how many readers take a tensor of ``nbytes`` from the arena."""
        return self.readers - self._far_reads if nbytes <= self._inline else self.readers

    def count_write(self, size: int, began: float) -> None:
        """Count ``size`` bytes written to the arena since ``began`` (``time.perf_counter``)."""
        self._seconds += time.perf_counter() - began
        self.moved += size
        self._pieces += 1

    def send_text(self, data: dict[str, Any]) -> None:
        """Send the next piece of text: the first at once, later ones at the latest with the outbox."""
        size = len(data.get("text", ""))
        if not (self._joins and self._seq) or size > MAX_JOINED_CHARS:
            self.send_chunk(Item(data), None, last=False)
            return
        pieces = self._held
        if pieces:
            self._held_chars += size
            if len(pieces) < MAX_JOINED_PIECES and self._held_chars <= MAX_JOINED_CHARS and _can_join(pieces[0], data):
                pieces.append(data)
                self._source.outbox.note_growth()
                return
            self.flush_held()
        self._held, self._held_chars = [data], size
        self._source.outbox.hold(self)

    def flush_held(self) -> None:
        """Send the pieces of text that were held."""
        pieces, self._held = self._held, []
        if len(pieces) == 1:
            self.send_chunk(Item(pieces[0]), None, last=False)
        elif pieces:
            cuts = tuple([len(piece.get("text", "")) for piece in pieces])
            self.send_chunk(Item(_join_pieces(pieces)), None, last=False, cuts=cuts)

    def send_chunk(
        self,
        item: Item,
        handle: Handle | None,
        *,
        last: bool,
        rows: tuple[int, int] | None = None,
        empty: bool = False,
        cuts: tuple[int, ...] = (),
    ) -> None:
        """Send the next chunk to all readers.

        ``handle`` refers to its tensor, or with ``rows`` to the tensor that contains those rows. ``cuts`` as in
        ``Chunk``.
        """
        if self._held:
            self.flush_held()
        source, invocation = self._source, self._source.invocation
        source.first = source.first or time.time()
        seq, self._seq, self.closed = self._seq, self._seq + 1, last
        for sibling in self._local:
            sibling.feed_input(source.index, self._name, ChannelChunk(seq, item, None, None, last, empty))
        if not self._edges and not self._gateway and self._record is None:
            return
        chunk = Chunk(
            inv=invocation.id,
            node=source.index,
            output=self._name,
            seq=seq,
            attempt=invocation.attempt,
            data=item.data,
            handle=handle,
            rows=rows,
            last=last,
            empty=empty,
            cuts=cuts,
        )
        near = far = messages.encode(chunk)
        if item.array is not None and item.array.nbytes <= self._inline:
            inline = pack_tensor(item.array)
            far = messages.encode(msgspec.structs.replace(chunk, handle=None, rows=None, inline=inline))
        for subject in self._edges:
            source.outbox.send(subject, far if subject in self._far else near)
        reply = invocation.reply
        if self._gateway:
            source.outbox.send(reply, far if reply in self._far else near)
        if self._record is not None:
            self._record(invocation, far if reply in self._far else near)

    def report_transfers(self) -> None:
        """Add the written tensors to the metrics, and reset the counts."""
        if self._pieces:
            component = self._source.invocation.nodes[self._source.index].component
            for target in self._targets:
                TRANSFER.count_transfer(component, target, self.moved, self._seconds, self._pieces)
            self.moved = self._pieces = 0
            self._seconds = 0.0


def _can_join(first: dict[str, Any], data: dict[str, Any]) -> bool:
    """Return whether both pieces have the same keys, with texts or lists."""
    if first.keys() != data.keys():
        return False
    for key, value in data.items():
        if type(value) not in _GROWING_TYPES or type(value) is not type(first[key]):
            return False
    return True


def _join_pieces(pieces: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one piece equivalent to ``pieces``, which can be joined."""
    return {
        key: "".join([piece[key] for piece in pieces])
        if type(value) is str
        else [each for piece in pieces for each in piece[key]]
        for key, value in pieces[0].items()
    }


class RowBlockWriter:
    """Writer of a tensor that grows row by row in one block; see ``runner.RowWriter``."""

    __slots__ = ("_block", "_count", "_cursor", "_output", "_width")

    def __init__(self, output: NodeOutput, block: Block | None, count: int, width: int) -> None:
        self._output = output
        self._block = block  # None if all readers are in this process
        self._count = count
        self._width = width
        self._cursor = 0

    def write(self, rows: np.ndarray, data: dict[str, Any] | None = None) -> None:
        start, end = self._cursor, self._cursor + len(rows)
        if end > self._count or rows.shape[1:] != (self._width,):
            raise ValueError(f"rows {rows.shape} at {start} do not fit a block of {(self._count, self._width)}")
        if self._block is not None:
            began = time.perf_counter()
            rows = rows.astype(self._block.array.dtype, copy=False)  # the values that readers of the block get
            self._block.array[start:end] = rows
            self._output.count_write(rows.nbytes, began)
        self._cursor = end
        handle = self._block.handle if self._block is not None else None
        self._output.send_chunk(Item(data or {}, rows), handle, last=False, rows=(start, end))

    def close_block(self) -> None:
        """Seal the block, or discard it if it has no rows: then no reader got it."""
        if self._block is not None and self._cursor:
            self._block.seal()
        else:
            self.discard_block()

    def discard_block(self) -> None:
        """Release the memory of the block."""
        if self._block is not None:
            self._block.discard()


log = logging.getLogger(__name__)

EDGE_WAIT_SECONDS = 10.0  # longest time that an edge waits for its invocation
MAX_WAITING_INVOCATIONS = 4096  # most invocations with waiting edges


class EarlyMessages:
    """Waiting messages by invocation; its length is the number of invocations."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[float, list[Chunk | Hop]]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add_message(self, message: Chunk | Hop) -> None:
        if message.inv not in self._waiting and len(self._waiting) >= MAX_WAITING_INVOCATIONS:
            log.warning("dropped an edge of %s: too many edges wait for their invocation", message.inv)
            return
        self._waiting.setdefault(message.inv, (time.monotonic(), []))[1].append(message)

    def take_messages(self, invocation: str) -> list[Chunk | Hop]:
        """Remove and return the messages of ``invocation``, in order."""
        _, messages = self._waiting.pop(invocation, (0.0, []))
        return messages

    def drop_expired(self) -> None:
        """Drop messages that have waited for too long."""
        oldest = time.monotonic() - EDGE_WAIT_SECONDS
        for invocation in [key for key, (arrival_time, _) in self._waiting.items() if arrival_time < oldest]:
            del self._waiting[invocation]
