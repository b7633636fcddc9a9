"""Job of one node, as runners use it: channels, outputs and tensors.

Connections of a node's outputs, cached by an invocation's shape and route.
"""

import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from omnibus.bus import messages, subjects
from omnibus.bus.coalescer import Outbox
from omnibus.bus.messages import Hop
from omnibus.bus.pull_log import REQUEST_INPUT, PullLog
from omnibus.errors import OmnibusError, ProtocolError
from omnibus.executor.edges import (
    Channel,
    ChannelChunk,
    NodeOutput,
    OutputReaders,
    OutputSource,
    Record,
    RowBlockWriter,
    Sibling,
)
from omnibus.executor.job_clock import JobClock
from omnibus.executor.runner import Item
from omnibus.graph import HANDLE, REF, Invocation, as_ref, find_refs
from omnibus.tensors.client import TensorClient
from omnibus.tensors.handle import Handle

#: Number of cached shapes.
MAX_SHAPES = 1024

_known: dict[object, tuple["OutputConnection", ...]] = {}


class OutputConnection(NamedTuple):
    """One output of a node: its readers in this process, and all others.

    ``requested`` is whether the gateway requests it, ``retained`` whether it retains it, and ``consumed`` whether any
    node reads it.
    """

    output: str
    local: tuple[int, ...]
    readers: OutputReaders
    requested: bool
    retained: bool
    consumed: bool


def find_connections(invocation: Invocation, index: int, executor: str, machine: str) -> tuple[OutputConnection, ...]:
    """Return the connections of node ``index``, which runs in ``executor`` on ``machine``."""
    places = (invocation.places, invocation.home, invocation.reply) if invocation.places else ()
    attempt = (invocation.attempts, invocation.attempt) if invocation.attempts else ()
    shape = tuple([(node.component, node.uses) for node in invocation.nodes])
    key = (index, executor, machine, invocation.route, shape, invocation.outputs, invocation.retained, places, attempt)
    connections = _known.get(key)
    if connections is None:
        if len(_known) >= MAX_SHAPES:
            _known.clear()
        connections = _known[key] = tuple(_connect_node(invocation, index, executor, machine))
    return connections


def _connect_node(invocation: Invocation, index: int, executor: str, machine: str) -> list[OutputConnection]:
    requested_outputs = {output for node, output in invocation.outputs if node == index}
    retained_outputs = {output for node, output in invocation.retained if node == index}
    consumers = invocation.find_consumers(index)
    connections = []
    for output in dict.fromkeys([*requested_outputs, *retained_outputs, *consumers]):
        nodes = [node for node in consumers.get(output, ()) if invocation.starts_node(node)]
        local = tuple(node for node in nodes if invocation.route[node] == executor)
        remote_nodes = [node for node in nodes if node not in local]
        readers = _find_readers(
            invocation, remote_nodes, machine, output in requested_outputs, output in retained_outputs
        )
        connections.append(
            OutputConnection(
                output, local, readers, output in requested_outputs, output in retained_outputs, bool(nodes)
            )
        )
    return connections


def _find_readers(
    invocation: Invocation, nodes: Sequence[int], machine: str, requested: bool, retained: bool
) -> OutputReaders:
    """Return the readers of an output: ``nodes`` in other processes, and the gateway if it reads it."""
    edges = [subjects.edge_subject(invocation.route[node]) for node in nodes]
    count = len(edges) + requested + retained
    components = dict.fromkeys(invocation.nodes[node].component for node in nodes)
    targets = (*components, "gateway") if requested else tuple(components)
    if not invocation.places:
        return OutputReaders(tuple(dict.fromkeys(edges)), count, requested, targets)
    far = [edge for node, edge in zip(nodes, edges, strict=True) if invocation.places[node] not in ("", machine)]
    if invocation.home != machine:
        far += [invocation.reply] * (requested + retained)
    return OutputReaders(tuple(dict.fromkeys(edges)), count, requested, targets, frozenset(far), len(far))


log = logging.getLogger(__name__)

#: Seconds that memory outlives the deadline of its invocation, so that the last reader can finish.
DEADLINE_GRACE_SECONDS = 5.0
#: Retained outputs that nodes consume and that are still sent at once: a talker resumes after its last codes.
_URGENT_OUTPUTS = frozenset({"codes"})


class LiveJob:
    """One node of one invocation in this executor; see ``runner.Job`` for what each method promises."""

    __slots__ = (
        "_blocks", "_channels", "_executor", "_inline", "_invocation", "_is_literal", "_literals", "_opened",
        "_outputs", "_pulls", "_ready", "_record", "_source", "_tensors", "_values", "_views", "answers", "clock",
        "index", "next_edge", "node", "taken",
    )  # fmt: skip

    def __init__(
        self,
        invocation: Invocation,
        index: int,
        executor: str,
        outbox: Outbox,
        tensors: TensorClient,
        record: Record | None = None,
        inline: int = 0,
        handles: bool = True,
    ) -> None:
        """``record`` receives the chunks of outputs that the gateway retains.

        Readers on other nodes get tensors of up to ``inline`` bytes within their chunks. Without ``handles``, the
        literal inputs contain no handles.
        """
        self._invocation = invocation
        self.index = index
        self.node = invocation.nodes[index]
        self._executor = executor
        self._tensors = tensors
        self._channels = {key: Channel(self.node.task, key) for key in self.node.uses}
        self._literals: Mapping[str, Any] | None = None
        self._source = OutputSource(invocation, index, outbox)
        self._record = record
        self._inline = inline
        self._is_literal = not (handles or self.node.uses)
        self._outputs: dict[str, NodeOutput] = {}
        #: Subject of another executor that reads an output of this node.
        self.next_edge: str | None = None
        #: Whether the gateway reads an output of this node.
        self.answers = False
        self._values: dict[tuple[int, str], Item] = {}
        self._views: dict[Handle, np.ndarray] = {}
        self._opened: dict[tuple[int, str], Handle] = {}  # handles of inputs that are one value, with an open view
        self._blocks: list[RowBlockWriter] = []
        self._pulls: PullLog | None = None
        self.clock = JobClock()
        self.taken = time.time()
        self._ready = self.taken

    def connect_outputs(self, siblings: Mapping[int, Sibling]) -> None:
        """Find the readers of every output; call it once all jobs of the invocation here exist."""
        for connection in find_connections(self._invocation, self.index, self._executor, self._tensors.node):
            self._outputs[connection.output] = NodeOutput(
                self._source,
                connection.output,
                [siblings[node] for node in connection.local],
                connection.readers,
                self._choose_record(connection) if connection.retained else None,
                # An attempt resumes from a checkpoint by its handle.
                self._inline if connection.consumed or connection.requested else 0,
            )
            self.answers = self.answers or connection.requested
            self.clock.continues = self.clock.continues or bool(connection.local)
            if self.next_edge is None and connection.readers.edges:
                self.next_edge = connection.readers.edges[0]

    def _choose_record(self, connection: OutputConnection) -> Record | None:
        """Return the function that sends a retained output's chunks: checkpoints and codes are not batched."""
        # Not a method of the job: outputs that refer to their job would wait for the garbage collector.
        urgent = not connection.consumed or connection.output in _URGENT_OUTPUTS
        return self._source.send_retained if urgent else self._record

    # What the runner reads

    @property
    def invocation(self) -> str:
        return self._invocation.id

    @property
    def inputs(self) -> Mapping[str, Any]:
        if self._literals is None:
            node_inputs = self.node.inputs
            references = self.node.uses
            self._literals = {
                key: node_inputs[key] for key in node_inputs if not references or not any(find_refs(node_inputs[key]))
            }
        return self._literals

    @property
    def peers(self) -> Sequence[Mapping[str, Any]]:
        nodes = self._invocation.nodes
        peer_inputs: Sequence[Mapping[str, Any]] = [self.node.inputs]
        for reader in {
            reader for readers in self._invocation.find_consumers(self.index).values() for reader in readers
        }:
            read = [nodes[source] for value in nodes[reader].inputs.values() for source, _ in find_refs(value)]
            peer_inputs = max(peer_inputs, [node.inputs for node in read if node.task == self.node.task], key=len)
        return peer_inputs

    def first_equal_call(self, names: Sequence[str]) -> int | None:
        nodes, own = self._invocation.nodes, self.node
        if len(nodes) == 1:
            return None
        indices = [
            index
            for index, node in enumerate(nodes)
            if node is own
            or (node.task == own.task and all(node.inputs.get(name) == own.inputs.get(name) for name in names))
        ]
        return indices[0] if len(indices) > 1 else None

    @property
    def seed(self) -> int:
        return self._invocation.seed_of(self.index)

    @property
    def deadline(self) -> float:
        return self._invocation.deadline

    def has_consumer(self, output: str) -> bool:
        return output in self._outputs

    def resume_state(self, output: str) -> Mapping[str, Any]:
        for node, name, left in self._invocation.resumes:
            if (node, name) == (self.index, output):
                return self._resume_item(left)
        return {}

    async def open_checkpoints(self) -> None:
        """Pull an earlier attempt's checkpoints from other nodes for ``resume_state``."""
        for node, output, left in self._invocation.resumes:
            handle = messages.to_handle(left[HANDLE]) if node == self.index and HANDLE in left else None
            if handle is not None and not self._tensors.is_local(handle):
                try:
                    await self._pull_tensor(handle, (node, output))
                except OmnibusError as error:
                    log.info("%s: cannot pull the checkpoint of %s (%s)", self.invocation, self.node.component, error)

    def _resume_item(self, left: Mapping[str, Any]) -> Mapping[str, Any]:
        if HANDLE not in left:
            return left
        try:
            array = self._view_tensor(messages.to_handle(left[HANDLE]))
        except OmnibusError as error:  # evicted or unreachable: this node starts from the beginning
            log.info("%s: the checkpoint of %s is gone (%s)", self.invocation, self.node.component, error)
            return {}
        return {"item": Item({key: value for key, value in left.items() if key != HANDLE}, array)}

    def is_local(self, output: str) -> bool:
        target = self._outputs.get(output)
        return target is not None and target.is_local

    async def value(self, name: str) -> Any:
        value = self.node.inputs.get(name)
        if not self._is_literal:
            value = await self._resolve_input(value)
        self._ready = time.time()
        return value

    async def _resolve_input(self, value: Any) -> Any:
        key = as_ref(value)
        if key is not None:
            return await self._channel_value(key)
        if type(value) is list:
            return [await self._resolve_input(element) for element in value]
        if type(value) is dict and HANDLE in value:
            handle = messages.to_handle(value[HANDLE])
            rest = {key: entry for key, entry in value.items() if key != HANDLE}
            local = handle.node == self._tensors.node
            return Item(rest, self._view_tensor(handle) if local else await self._pull_tensor(handle, REQUEST_INPUT))
        if type(value) is dict and _has_references(value):
            return {key: await self._resolve_input(element) for key, element in value.items()}
        return value

    async def _channel_value(self, key: tuple[int, str]) -> Item:
        """Wait for the only value of a channel; several inputs may refer to it."""
        if key not in self._values:
            piece = await self._channels[key].next_chunk()
            if piece is None:
                raise ProtocolError(f"{self.node.task}: {key[1]} of node {key[0]} ended without a value")
            if piece.handle is not None and piece.handle.node != self._tensors.node:
                await self._pull_tensor(piece.handle, key, piece.rows)
            self._values[key] = self._open_chunk(piece)
            if piece.handle is not None:
                self._opened[key] = piece.handle
        return self._values[key]

    def release_input(self, name: str) -> None:
        key = as_ref(self.node.inputs.get(name))
        handle = None if key is None else self._opened.pop(key, None)
        if handle is not None and handle not in self._opened.values() and self._views.pop(handle, None) is not None:
            self._tensors.release(handle)

    async def stream(self, name: str) -> AsyncIterator[Item]:
        key = as_ref(self.node.inputs.get(name))
        if key is None:
            raise ProtocolError(f"{self.node.task}: input {name!r} is not a stream")
        channel = self._channels[key]
        while (piece := await channel.next_chunk()) is not None:
            if not piece.empty:
                self._ready = self._ready if self._source.first else time.time()
                if piece.handle is not None and piece.handle.node != self._tensors.node:
                    await self._pull_tensor(piece.handle, key, piece.rows)
                yield self._open_chunk(piece)

    def _open_chunk(self, piece: ChannelChunk) -> Item:
        if piece.handle is None:
            return piece.item
        whole = self._view_tensor(piece.handle)
        return Item(piece.item.data, whole if piece.rows is None else whole[piece.rows[0] : piece.rows[1]])

    async def _pull_tensor(
        self, handle: Handle, key: tuple[int, str], rows: tuple[int, int] | None = None
    ) -> np.ndarray:
        """Pull the tensor of ``handle``, output ``key``, from another node; if it grows, at least ``rows`` of it."""
        if self._pulls is None:
            self._pulls = PullLog(self._tensors.node)
        with self._pulls.measure_pull(key, handle, rows):
            return await self._open_remote(handle, rows)

    async def _open_remote(self, handle: Handle, rows: tuple[int, int] | None) -> np.ndarray:
        tensors, until = self._tensors, self.deadline
        if handle in self._views:
            if rows is not None:
                await tensors.extend_read(handle, rows, invocation=self.invocation, deadline=until)
            return self._views[handle]
        array = await tensors.open_tensor(handle, rows, invocation=self.invocation, deadline=until)
        if handle in self._views:  # another input refers to the same tensor, and opened it first
            tensors.release(handle)
        return self._views.setdefault(handle, array)

    def _view_tensor(self, handle: Handle) -> np.ndarray:
        if handle not in self._views:
            self._views[handle] = self._tensors.view(handle)
        return self._views[handle]

    def feed_input(self, node: int, output: str, piece: ChannelChunk) -> None:
        channel = self._channels.get((node, output))
        if channel is not None:
            channel.add_chunk(piece)

    # What the runner writes

    async def put(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None:
        await self._emit_output(output, data, array, last=True)

    async def send(self, output: str, data: dict[str, Any], array: np.ndarray | None = None) -> None:
        await self._emit_output(output, data, array, last=False)

    async def send_text(self, output: str, data: dict[str, Any]) -> None:
        self.write_text(output, data)

    def write_text(self, output: str, data: dict[str, Any]) -> None:
        target = self._outputs.get(output)
        if target is not None and not target.closed:
            target.send_text(data)

    async def _emit_output(self, output: str, data: dict[str, Any], array: np.ndarray | None, last: bool) -> None:
        target = self._outputs.get(output)
        if target is None or target.closed:
            return
        handle = None
        if array is not None and (readers := target.count_reads(array.nbytes)):
            began = time.perf_counter()
            handle = await self._tensors.put(
                array,
                invocation=self.invocation,
                deadline=self.deadline + DEADLINE_GRACE_SECONDS,
                readers=readers,
            )
            target.count_write(array.nbytes, began)
        target.send_chunk(Item(data, array), handle, last=last)

    async def open_rows(self, output: str, count: int, width: int, dtype: str) -> RowBlockWriter:
        target = self._outputs[output]
        block = None
        if target.readers:
            block = await self._tensors.allocate(
                (count, width),
                dtype,
                invocation=self.invocation,
                deadline=self.deadline + DEADLINE_GRACE_SECONDS,
                readers=target.readers,
            )
        writer = RowBlockWriter(target, block, count, width)
        self._blocks.append(writer)
        return writer

    def close(self, output: str, data: dict[str, Any] | None = None) -> None:
        target = self._outputs.get(output)
        if target is not None and not target.closed:
            target.send_chunk(Item(data or {}), None, last=True, empty=data is None)

    # What the executor calls at the end

    def finish_outputs(self) -> Hop:
        """Close all open outputs, seal the row blocks, and return the times."""
        for output, target in self._outputs.items():
            if not target.closed:
                self.close(output)
        for writer in self._blocks:
            writer.close_block()
        self._blocks.clear()
        self.clock.closed = True
        return self.make_hop()

    def make_hop(self) -> Hop:
        """Return the times so far, with now as the end."""
        now = time.time()
        return Hop(
            inv=self.invocation,
            node=self.index,
            executor=self._executor,
            taken=self.taken,
            ready=self._ready,
            first=self._source.first or now,
            end=now,
            attempt=self._invocation.attempt,
            began=self.clock.began,
            arrived=tuple([self._channels[key].began for key in self.node.uses]),
            nbytes=sum(target.moved for target in self._outputs.values()),
            pulls=self._pulls.costs() if self._pulls is not None else (),
            computed=round(self.clock.seconds, 7),
        )

    def release_memory(self) -> None:
        """Release every view, and discard every unfinished block."""
        for target in self._outputs.values():
            target.report_transfers()
        for handle in self._views:
            self._tensors.release(handle)
        self._views.clear()
        for writer in self._blocks:
            writer.discard_block()
        self._blocks.clear()


def _has_references(value: Any) -> bool:
    """Return whether ``value`` contains a reference or a handle."""
    if type(value) is dict:
        return REF in value or HANDLE in value or any(map(_has_references, value.values()))
    return type(value) is list and any(map(_has_references, value))
