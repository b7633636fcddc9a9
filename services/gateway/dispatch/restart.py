"""A lost stage begins again, and those that depend on it: nodes before it go on where they are.

What such a node gives arrives at the gateway as well (``services.gateway.dispatch.retention``), and is sent on from
here to the executors that begin again: first what it gave before, then what still comes.
"""

import logging
from collections.abc import Iterable

import msgspec

from omnibus import graph
from omnibus.bus import Bus, messages, subjects
from omnibus.bus.messages import Chunk, InvocationEnd
from omnibus.errors import OmnibusError, SequenceGap
from omnibus.graph import Invocation
from services.gateway.dispatch.inflight import InflightInvocation
from services.gateway.dispatch.retention import CHECKPOINT, Key, OutputRetention, affected_nodes

log = logging.getLogger(__name__)

#: Bytes of a message that are left for its frame.
_FRAME_OVERHEAD_BYTES = 512


class StageRestarts:
    """Says which nodes of an invocation begin again, and feeds them."""

    def __init__(self, bus: Bus, retention: OutputRetention, limit: int) -> None:
        self._bus = bus
        self._limit = limit
        self.retention = retention

    # What is retained

    def prepare_invocation(self, running: InflightInvocation, invocation: Invocation) -> Invocation:
        """``invocation`` as it is sent: with the outputs that are retained of it, in records that begin here."""
        keys = self.retention.retained_outputs(invocation)
        for key in keys:
            if key not in running.records:
                running.records[key] = self.retention.open_record(key)
        return self._fit_message(msgspec.structs.replace(invocation, retained=keys) if keys else invocation)

    def _fit_message(self, invocation: Invocation) -> Invocation:
        """Return ``invocation``, without the largest of what nodes can begin with if its message has no room for it."""
        while invocation.resumes and len(graph.encode_invocation(invocation)) + _FRAME_OVERHEAD_BYTES > self._limit:
            log.info("%s begins again from less: its message is full", invocation.id)
            _, _, largest = max(invocation.resumes, key=lambda each: len(msgspec.json.encode(each)))
            left = tuple([each for each in invocation.resumes if each[2] != largest])  # both halves of a model, or none
            invocation = msgspec.structs.replace(invocation, resumes=left)
        return invocation

    def record_chunk(self, running: InflightInvocation, chunk: Chunk) -> None:
        """A node has sent ``chunk`` to another one. Raises ``SequenceGap`` where one that begins again needs it."""
        key = (chunk.node, chunk.output)
        record = running.records[key]
        targets = running.forwards.get(key, ())
        if self.retention.record_chunk(record, chunk):
            self._forward_chunk(chunk, targets)
        elif targets:
            raise SequenceGap(f"{chunk.output} of node {chunk.node} cannot be sent on: a chunk of it is missing")

    # Which nodes

    def nodes_to_restart(self, running: InflightInvocation, lost: frozenset[int]) -> frozenset[int]:
        """The nodes that begin again, with those ``lost``: all of them where nothing is retained."""
        everything = frozenset(range(len(running.attempts)))
        if not running.records or not lost:
            return everything
        usable = {}
        for key, record in running.records.items():
            alive = key[0] not in lost and running.executors[key[0]] not in running.lost
            usable[key] = (record.whole or alive) and self.retention.is_usable(record)
        return affected_nodes(running.invocation, lost, running.hops, usable)

    def end_messages(self, running: InflightInvocation, again: frozenset[int]) -> Iterable[tuple[str, InvocationEnd]]:
        """Yield each executor of the nodes that begin ``again``, with the ``InvocationEnd`` message for it."""
        invocation = running.invocation
        for executor in dict.fromkeys(running.executors[node] for node in sorted(again)):
            own = frozenset(node for node, by in enumerate(running.executors) if by == executor)
            others = running.unfinished_nodes(executor) - again
            yield (
                executor,
                InvocationEnd(
                    invocation.id, "moved", invocation.attempt, nodes=tuple(sorted(own & again)) if others else ()
                ),
            )

    def drop_outputs(self, running: InflightInvocation, again: frozenset[int]) -> None:
        """Drop what the nodes ``again`` have given: they will give it again."""
        for key in [key for key in running.records if key[0] in again]:
            if key[1] == CHECKPOINT:
                running.records[key].restart()  # it is what its node begins with
            else:
                self.retention.drop_record(running.records.pop(key))

    # Feeding them

    def feed_nodes(self, running: InflightInvocation, again: frozenset[int]) -> None:
        """Send the nodes ``again`` what those before them have given, and from now on what they give."""
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
                log.warning("%s: a chunk was not sent on to %s: %s", chunk.inv, executor, error)
