"""The ``Job`` that runners see, on top of channels, the outbox and the arena."""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from omnibus.bus import messages, subjects
from omnibus.bus.messages import Chunk, Hop
from omnibus.bus.outbox import Outbox
from omnibus.errors import ProtocolError
from omnibus.executor.channels import Channel, Piece
from omnibus.executor.contract import Item
from omnibus.executor.moments import Moment
from omnibus.graph import HANDLE, REF, Invocation, as_ref, refs
from omnibus.metrics import TRANSFER
from omnibus.tensors.client import Block, TensorClient
from omnibus.tensors.handle import Handle

#: Seconds that memory outlives the deadline of its invocation, so that the last reader is not cut off.
GRACE = 5.0


class Sibling(Protocol):
    """Another node of the same invocation in this process."""

    def feed(self, node: int, output: str, piece: Piece) -> None: ...


class _Output:
    """Where one output goes: jobs in this process, executors elsewhere, the gateway."""

    __slots__ = ("closed", "edges", "gateway", "local", "moved", "pieces", "readers", "seconds", "seq", "targets")

    def __init__(
        self, local: list[Sibling], edges: list[str], readers: int, gateway: bool, targets: tuple[str, ...]
    ) -> None:
        self.local = local
        self.edges = edges
        self.readers = readers
        self.gateway = gateway
        self.targets = targets  # components that read it elsewhere, and the gateway
        self.moved = self.pieces = 0  # bytes and tensors written for them, which took ``seconds``
        self.seconds = 0.0
        self.seq = 0
        self.closed = False

    def wrote(self, size: int, began: float) -> None:
        """A tensor of ``size`` bytes is in the arena; ``began`` is of ``time.perf_counter``."""
        self.seconds += time.perf_counter() - began
        self.moved += size
        self.pieces += 1

    def tell(self, source: str) -> None:
        """Count what was written, and begin anew."""
        if self.pieces:
            for target in self.targets:
                TRANSFER.count(source, target, self.moved, self.seconds, self.pieces)
            self.moved = self.pieces = 0
            self.seconds = 0.0


class LiveJob:
    """One node of one invocation in this executor; see ``contract.Job`` for what each method promises."""

    def __init__(
        self, invocation: Invocation, index: int, executor: str, outbox: Outbox, tensors: TensorClient
    ) -> None:
        self._invocation = invocation
        self.index = index
        self.node = invocation.nodes[index]
        self._executor = executor
        self._outbox = outbox
        self._tensors = tensors
        self._channels = {key: Channel(self.node.task, key) for key in self.node.uses}
        self._literals: Mapping[str, Any] | None = None
        self._outputs: dict[str, _Output] = {}
        #: Subject of another executor that reads an output of this node.
        self.next_edge: str | None = None
        #: Whether the gateway reads an output of this node.
        self.answers = False
        self._values: dict[tuple[int, str], Item] = {}
        self._views: dict[Handle, np.ndarray] = {}
        self._opened: dict[tuple[int, str], Handle] = {}  # whose views are of inputs that are one value
        self._blocks: list[Block] = []
        self._nbytes = 0
        self.began = Moment()
        self.taken = time.time()
        self._ready = self.taken
        self._first = 0.0

    def connect(self, siblings: Mapping[int, Sibling]) -> None:
        """Learn where every output goes, once all jobs of the invocation here exist."""
        asked = {output for node, output in self._invocation.outputs if node == self.index}
        consumers = self._invocation.consumers(self.index)
        for output in asked | consumers.keys():
            nodes = consumers.get(output, [])
            elsewhere = [self._invocation.route[node] for node in nodes if node not in siblings]
            self._outputs[output] = _Output(
                local=[siblings[node] for node in nodes if node in siblings],
                edges=[subjects.edge(executor) for executor in dict.fromkeys(elsewhere)],
                readers=len(elsewhere) + (output in asked),
                gateway=output in asked,
                targets=self._targets([node for node in nodes if node not in siblings], output in asked),
            )
            self.answers = self.answers or output in asked
            if elsewhere and self.next_edge is None:
                self.next_edge = subjects.edge(elsewhere[0])

    def _targets(self, nodes: Sequence[int], asked: bool) -> tuple[str, ...]:
        components = dict.fromkeys(self._invocation.nodes[node].component for node in nodes)
        return (*components, "gateway") if asked else tuple(components)

    # What the runner reads

    @property
    def invocation(self) -> str:
        return self._invocation.id

    @property
    def inputs(self) -> Mapping[str, Any]:
        if self._literals is None:
            given = self.node.inputs
            used = self.node.uses
            self._literals = {key: given[key] for key in given if not used or not any(refs(given[key]))}
        return self._literals

    @property
    def peers(self) -> Sequence[Mapping[str, Any]]:
        nodes = self._invocation.nodes
        found: Sequence[Mapping[str, Any]] = [self.node.inputs]
        for reader in {reader for readers in self._invocation.consumers(self.index).values() for reader in readers}:
            read = [nodes[source] for value in nodes[reader].inputs.values() for source, _ in refs(value)]
            found = max(found, [node.inputs for node in read if node.task == self.node.task], key=len)
        return found

    @property
    def seed(self) -> int:
        return self._invocation.seed_of(self.index)

    @property
    def deadline(self) -> float:
        return self._invocation.deadline

    def wants(self, output: str) -> bool:
        return output in self._outputs

    def here(self, output: str) -> bool:
        target = self._outputs.get(output)
        return target is not None and not (target.edges or target.gateway)

    async def value(self, name: str) -> Any:
        value = await self._resolve(self.node.inputs.get(name))
        self._ready = time.time()
        return value

    async def _resolve(self, value: Any) -> Any:
        key = as_ref(value)
        if key is not None:
            return await self._value(key)
        if type(value) is list:
            return [await self._resolve(element) for element in value]
        if type(value) is dict and HANDLE in value:
            handle = messages.to_handle(value[HANDLE])
            rest = {key: entry for key, entry in value.items() if key != HANDLE}
            return Item(rest, self._view(handle))
        if type(value) is dict and _marked(value):
            return {key: await self._resolve(element) for key, element in value.items()}
        return value

    async def _value(self, key: tuple[int, str]) -> Item:
        """The one value of a channel; several inputs may name it."""
        if key not in self._values:
            piece = await self._channels[key].next()
            if piece is None:
                raise ProtocolError(f"{self.node.task}: {key[1]} of node {key[0]} ended without a value")
            self._values[key] = self._open(piece)
            if piece.handle is not None:
                self._opened[key] = piece.handle
        return self._values[key]

    def done(self, name: str) -> None:
        key = as_ref(self.node.inputs.get(name))
        handle = None if key is None else self._opened.pop(key, None)
        if handle is not None and handle not in self._opened.values() and self._views.pop(handle, None) is not None:
            self._tensors.release(handle)

    async def stream(self, name: str) -> AsyncIterator[Item]:
        key = as_ref(self.node.inputs.get(name))
        if key is None:
            raise ProtocolError(f"{self.node.task}: input {name!r} is no stream")
        channel = self._channels[key]
        while (piece := await channel.next()) is not None:
            if not piece.empty:
                self._ready = self._ready if self._first else time.time()
                yield self._open(piece)

    def _open(self, piece: Piece) -> Item:
        if piece.handle is None:
            return piece.item
        whole = self._view(piece.handle)
        return Item(piece.item.data, whole if piece.rows is None else whole[piece.rows[0] : piece.rows[1]])

    def _view(self, handle: Handle) -> np.ndarray:
        if handle not in self._views:
            self._views[handle] = self._tensors.view(handle)
        return self._views[handle]

    def feed(self, node: int, output: str, piece: Piece) -> None:
        channel = self._channels.get((node, output))
        if channel is not None:
            channel.feed(piece)

    # What the runner writes

    async def put(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None:
        await self._emit(output, data, array, last=True)

    async def send(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None:
        await self._emit(output, data, array, last=False)

    async def _emit(self, output: str, data: dict[str, Any], array: np.ndarray | None, last: bool) -> None:
        target = self._outputs.get(output)
        if target is None or target.closed:
            return
        handle = None
        if array is not None and target.readers:
            began = time.perf_counter()
            self._nbytes += array.nbytes
            handle = await self._tensors.put(
                array, invocation=self.invocation, deadline=self.deadline + GRACE, readers=target.readers
            )
            target.wrote(array.nbytes, began)
        self._pass_on(output, target, Item(data, array), handle, last=last)

    async def rows(self, output: str, count: int, width: int, dtype: str) -> "Rows":
        target = self._outputs[output]
        block = None
        if target.readers:
            block = await self._tensors.allocate(
                (count, width),
                dtype,
                invocation=self.invocation,
                deadline=self.deadline + GRACE,
                readers=target.readers,
            )
            self._blocks.append(block)
        return Rows(self, output, target, block, count, width)

    def close(self, output: str, data: dict[str, Any] | None = None) -> None:
        target = self._outputs.get(output)
        if target is not None and not target.closed:
            self._pass_on(output, target, Item(data or {}), None, last=True, empty=data is None)

    def _pass_on(
        self,
        output: str,
        target: _Output,
        item: Item,
        handle: Handle | None,
        *,
        last: bool,
        rows: tuple[int, int] | None = None,
        empty: bool = False,
    ) -> None:
        self._first = self._first or time.time()
        seq, target.seq, target.closed = target.seq, target.seq + 1, last
        for sibling in target.local:
            sibling.feed(self.index, output, Piece(seq, item, None, None, last, empty))
        if not target.edges and not target.gateway:
            return
        body = messages.encode(
            Chunk(
                inv=self.invocation,
                node=self.index,
                output=output,
                seq=seq,
                attempt=self._invocation.attempt,
                data=item.data,
                handle=handle,
                rows=rows,
                last=last,
                empty=empty,
            )
        )
        for subject in target.edges:
            self._outbox.send(subject, body)
        if target.gateway:
            self._outbox.send(self._invocation.reply, body)

    # What the executor asks at the end

    def finish(self) -> Hop:
        """Close what the runner left open, seal what grew here, and report the times."""
        for output, target in self._outputs.items():
            if not target.closed:
                self.close(output)
        for block in self._blocks:
            block.seal()
        self._blocks.clear()
        return self.times()

    def times(self) -> Hop:
        """The times so far; the end is now."""
        now = time.time()
        return Hop(
            inv=self.invocation,
            node=self.index,
            executor=self._executor,
            taken=self.taken,
            ready=self._ready,
            first=self._first or now,
            end=now,
            attempt=self._invocation.attempt,
            began=self.began.at,
            arrived=tuple([self._channels[key].began for key in self.node.uses]),
            nbytes=self._nbytes,
        )

    def release(self) -> None:
        """Give back every view, and every block that was not finished."""
        for target in self._outputs.values():
            target.tell(self.node.component)
        for handle in self._views:
            self._tensors.release(handle)
        self._views.clear()
        for block in self._blocks:
            block.discard()
        self._blocks.clear()


def _marked(value: Any) -> bool:
    """Whether a reference or a handle lies inside of ``value``."""
    if type(value) is dict:
        return REF in value or HANDLE in value or any(map(_marked, value.values()))
    return type(value) is list and any(map(_marked, value))


class Rows:
    """A tensor that grows row by row in one block; see ``contract.RowWriter``."""

    __slots__ = ("_block", "_count", "_cursor", "_job", "_output", "_target", "_width")

    def __init__(self, job: LiveJob, output: str, target: _Output, block: Block | None, count: int, width: int) -> None:
        self._job = job
        self._output = output
        self._target = target
        self._block = block
        self._count = count
        self._width = width
        self._cursor = 0

    def write(self, rows: np.ndarray, data: dict[str, Any] | None = None) -> None:
        start, end = self._cursor, self._cursor + len(rows)
        if end > self._count or rows.shape[1:] != (self._width,):
            raise ValueError(f"rows {rows.shape} at {start} do not fit a block of {(self._count, self._width)}")
        if self._block is not None:
            began = time.perf_counter()
            self._block.array[start:end] = rows
            self._target.wrote(rows.nbytes, began)
            self._job._nbytes += rows.nbytes
        self._cursor = end
        handle = self._block.handle if self._block is not None else None
        self._job._pass_on(self._output, self._target, Item(data or {}, rows), handle, last=False, rows=(start, end))
