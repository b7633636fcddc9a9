"""Playback of recorded outputs, for replays that begin mid-graph."""

import asyncio
import logging
import time
from collections.abc import Mapping

from omnibus.bus import Bus, messages, subjects
from omnibus.bus.messages import Chunk, Hop
from omnibus.errors import Fatal, OmnibusError
from omnibus.tensors.client import TensorClient
from omnibus_gateway.dispatch.capture import RecordedChunk
from omnibus_gateway.dispatch.inflight import InflightInvocation

log = logging.getLogger(__name__)

#: Seconds that played tensors outlive the deadline.
DEADLINE_GRACE_SECONDS = 10.0

#: By node and output.
Tapes = Mapping[tuple[int, str], list[RecordedChunk]]


class OutputPlayer:
    """Replaces the executor ``name`` of the nodes before ``start`` in every attempt."""

    def __init__(self, bus: Bus, tensors: TensorClient, limit: int, name: str, start: int, tapes: Tapes) -> None:
        self._bus = bus
        self._tensors = tensors
        self._limit = limit
        self._start = start
        self._tapes = tapes
        self._task: asyncio.Task[None] | None = None
        self.name = name

    def prepare_attempts(self, running: InflightInvocation) -> None:
        """Play in each attempt of ``running``, which must not be sent yet."""
        if self._start:
            running.absent = frozenset({self.name})
            running.on_sent = self._on_attempt_sent

    def _on_attempt_sent(self, running: InflightInvocation) -> None:
        """Finish the recorded nodes of an attempt, and play their outputs."""
        self.stop()
        now = time.time()
        for node in range(self._start):
            running.finish_node(Hop(running.id, node, self.name, now, now, now, now, running.invocation.attempt))
        self._task = asyncio.get_running_loop().create_task(self._play_outputs(running))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _play_outputs(self, running: InflightInvocation) -> None:
        try:
            for (node, output), pieces in self._tapes.items():
                for seq, piece in enumerate(pieces):
                    await self._send_chunk(running, node, output, seq, piece)
        except OmnibusError as error:
            running.fail(error)
        except Exception:  # the client must not wait forever
            log.exception("%s: a recorded output could not be played", running.id)
            running.fail(Fatal("a recorded output could not be played: see the gateway's log"))

    async def _send_chunk(
        self, running: InflightInvocation, node: int, output: str, seq: int, piece: RecordedChunk
    ) -> None:
        invocation = running.invocation
        readers = [index for index in invocation.find_consumers(node).get(output, ()) if index >= self._start]
        handle = None
        if piece.array is not None:
            handle = await self._tensors.put(
                piece.array,
                invocation=invocation.id,
                deadline=invocation.deadline + DEADLINE_GRACE_SECONDS,
                readers=len(readers),
            )
        chunk = Chunk(
            inv=invocation.id,
            node=node,
            output=output,
            seq=seq,
            attempt=invocation.attempt,
            data=piece.data,
            handle=handle,
            last=piece.last,
            empty=piece.empty,
        )
        for frame in messages.join_frames([messages.encode(chunk)], self._limit):
            for executor in dict.fromkeys(invocation.route[index] for index in readers):
                self._bus.publish(subjects.edge_subject(executor), frame)
