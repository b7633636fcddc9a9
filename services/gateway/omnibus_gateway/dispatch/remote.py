"""Chunks with tensors on another node: pulled here, and fed in order.

Chunks of one output wait for each other, so that its stream has no gap; other outputs continue. A local chunk also
waits for earlier chunks that are still being pulled.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from omnibus.bus.messages import Chunk
from omnibus.bus.pull_log import PullLog
from omnibus.errors import OmnibusError
from omnibus.tensors.client import TensorClient
from omnibus.tensors.handle import Handle
from omnibus_gateway.dispatch.inflight import InflightInvocation

log = logging.getLogger(__name__)

#: Handles a chunk whose tensor can be viewed here.
FeedChunk = Callable[[InflightInvocation, Chunk], None]
#: Handles the error of a pull, and its chunk.
FailChunk = Callable[[InflightInvocation, Chunk, OmnibusError], None]


class RemoteChunks:
    """Pulls for all invocations of one gateway."""

    def __init__(self, tensors: TensorClient, feed: FeedChunk, fail: FailChunk) -> None:
        self._tensors = tensors
        self._feed = feed
        self._fail = fail

    def must_wait(self, running: InflightInvocation, chunk: Chunk) -> bool:
        """Return True if ``chunk`` must wait for its or an earlier pull."""
        key = (chunk.node, chunk.output)
        if key in running.arriving:
            return True
        # Outputs that are only retained are not read here.
        read = key in running.streams or key in running.tapes
        return read and chunk.handle is not None and chunk.handle.node != self._tensors.node

    def add_chunk(self, running: InflightInvocation, chunk: Chunk) -> None:
        """Feed ``chunk`` after its tensor has arrived and earlier chunks were fed."""
        key = (chunk.node, chunk.output)
        waiting = running.arriving.get(key)
        if waiting is not None:
            waiting.append(chunk)
            return
        running.arriving[key] = deque([chunk])
        task = asyncio.get_running_loop().create_task(self._pull_in_order(running, key))
        running.pulls.add(task)
        task.add_done_callback(running.pulls.discard)

    async def _pull_in_order(self, running: InflightInvocation, key: tuple[int, str]) -> None:
        waiting = running.arriving[key]
        open_handle: Handle | None = None
        try:
            while waiting:
                chunk = waiting[0]
                if running.attempts.get(chunk.node) == chunk.attempt:
                    open_handle = await self._open_tensor(running, chunk, open_handle)
                    self._feed(running, chunk)
                waiting.popleft()
        except OmnibusError as error:
            self._fail(running, waiting[0], error)
        finally:
            del running.arriving[key]

    async def _open_tensor(
        self, running: InflightInvocation, chunk: Chunk, open_handle: Handle | None
    ) -> Handle | None:
        """Pull the bytes of ``chunk``; returns the handle whose read is open."""
        handle, rows = chunk.handle, chunk.rows
        if handle is None or self._tensors.is_local(handle):
            return open_handle
        if running.pull_log is None:
            running.pull_log = PullLog(self._tensors.node)
        invocation, deadline = running.id, running.invocation.deadline
        with running.pull_log.measure_pull((chunk.node, chunk.output), handle, rows):
            if rows is not None and handle == open_handle:
                await self._tensors.extend_read(handle, rows, invocation=invocation, deadline=deadline)
            else:
                running.pulled = True
                await self._tensors.open_tensor(handle, rows, invocation=invocation, deadline=deadline)
        return handle
