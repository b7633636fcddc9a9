"""Restart of a lost stage and its dependents, but not their producers.

The gateway also receives the outputs of these nodes (``omnibus_gateway.dispatch.retention``). It forwards them to the
executors that restart: first the earlier chunks, then the new ones.
"""

import logging
from collections.abc import Iterable

import msgspec

from omnibus import graph
from omnibus.bus import Bus, messages, subjects
from omnibus.bus.messages import Chunk, InvocationEnd
from omnibus.errors import OmnibusError, SequenceGap
from omnibus.graph import Invocation
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.dispatch.retention import CHECKPOINT, Key, OutputRetention, affected_nodes

log = logging.getLogger(__name__)

#: Bytes of a message that are reserved for its frame.
_FRAME_OVERHEAD_BYTES = 512


class StageRestarts:
    """Determines which nodes of an invocation restart, and feeds them."""

    def __init__(self, bus: Bus, retention: OutputRetention, limit: int) -> None:
        self._bus = bus
        self._limit = limit
        self.retention = retention

    # What is retained

    def prepare_invocation(self, running: InflightInvocation, invocation: Invocation) -> Invocation:
        """Return ``invocation`` with the outputs to retain, and open their records."""
        keys = self.retention.retained_outputs(invocation)
        for key in keys:
            if key not in running.records:
                running.records[key] = self.retention.open_record(key)
        return self._fit_message(msgspec.structs.replace(invocation, retained=keys) if keys else invocation)

    def _fit_message(self, invocation: Invocation) -> Invocation:
        """Return ``invocation`` without the largest resume states that exceed the message size."""
        while invocation.resumes and len(graph.encode_invocation(invocation)) + _FRAME_OVERHEAD_BYTES > self._limit:
            log.info("%s restarts with less progress: its message is full", invocation.id)
            _, _, largest = max(invocation.resumes, key=lambda each: len(msgspec.json.encode(each)))
            left = tuple([each for each in invocation.resumes if each[2] != largest])  # both halves of a model, or none
            invocation = msgspec.structs.replace(invocation, resumes=left)
        return invocation

    def record_chunk(self, running: InflightInvocation, chunk: Chunk) -> None:
        """Record ``chunk`` between two nodes. Raises ``SequenceGap`` if a restarted reader misses it."""
        key = (chunk.node, chunk.output)
        record = running.records[key]
        targets = running.forwards.get(key, ())
        if self.retention.record_chunk(record, chunk):
            self._forward_chunk(chunk, targets)
        elif targets:
            raise SequenceGap(f"{chunk.output} of node {chunk.node} cannot be forwarded: a chunk of it is missing")

    # Which nodes

    def nodes_to_restart(self, running: InflightInvocation, lost_nodes: frozenset[int]) -> frozenset[int]:
        """Return the nodes that restart with the ``lost_nodes`` ones; all of them without retention."""
        everything = frozenset(range(len(running.attempts)))
        if not running.records or not lost_nodes:
            return everything
        usable = {}
        for key, record in running.records.items():
            alive = key[0] not in lost_nodes and running.executors[key[0]] not in running.lost
            usable[key] = (record.whole or alive) and self.retention.is_usable(record)
        return affected_nodes(running.invocation, lost_nodes, running.hops, usable)

    def end_messages(self, running: InflightInvocation, again: frozenset[int]) -> Iterable[tuple[str, InvocationEnd]]:
        """Yield each executor of the nodes ``again`` and its ``InvocationEnd`` message."""
        invocation = running.invocation
        for executor in dict.fromkeys(running.executors[node] for node in sorted(again)):
            own = frozenset(node for node, by in enumerate(running.executors) if by == executor)
            remaining_nodes = running.unfinished_nodes(executor) - again
            yield (
                executor,
                InvocationEnd(
                    invocation.id,
                    "moved",
                    invocation.attempt,
                    nodes=tuple(sorted(own & again)) if remaining_nodes else (),
                ),
            )

    def drop_outputs(self, running: InflightInvocation, again: frozenset[int]) -> None:
        """Drop the outputs of the nodes ``again``, which will send them again."""
        for key in [key for key in running.records if key[0] in again]:
            if key[1] == CHECKPOINT:
                running.records[key].restart()  # its node resumes from it
            else:
                self.retention.drop_record(running.records.pop(key))

    # Feeding them

    def feed_nodes(self, running: InflightInvocation, again: frozenset[int]) -> None:
        """Forward earlier and future outputs to the nodes ``again``."""
        forwards: dict[Key, list[tuple[str, int]]] = {}
        new: dict[Key, list[tuple[str, int]]] = {}
        for reader, node in enumerate(running.invocation.nodes):
            to = (running.executors[reader], running.attempts[reader])
            for use in node.uses if reader not in running.hops else ():
                if running.attempts[use[0]] != to[1]:
                    forwards.setdefault(use, []).append(to)
                    if reader in again:
                        new.setdefault(use, []).append(to)
        running.forwards = {key: list(dict.fromkeys(targets)) for key, targets in forwards.items()}
        for key, targets in new.items():
            for chunk in running.records[key].chunks:
                self._forward_chunk(chunk, dict.fromkeys(targets))

    def _forward_chunk(self, chunk: Chunk, targets: Iterable[tuple[str, int]]) -> None:
        for executor, attempt in targets:
            body = messages.encode(msgspec.structs.replace(chunk, attempt=attempt))
            try:
                for frame in messages.join_frames([body], self._limit):
                    self._bus.publish(subjects.edge_subject(executor), frame)
            except OmnibusError as error:  # the reader's deadline covers it
                log.warning("cannot forward a chunk of %s to %s: %s", chunk.inv, executor, error)
