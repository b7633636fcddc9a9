"""One run of a recorded invocation without a record: its outputs, times and failure."""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

from omnibus.bus.messages import Hop
from omnibus.errors import DeadlineExceeded, OmnibusError
from omnibus.tensors.handle import Item
from omnibus_gateway.dispatch.dispatcher import Dispatcher
from omnibus_gateway.dispatch.inflight import InflightInvocation
from omnibus_gateway.dispatch.retention import RecordedChunk
from omnibus_gateway.dispatch.streams import Fingerprint, merge_streams


class MirroredRun(NamedTuple):
    """Result of a run.

    It has outputs by node and name, seconds in all, times of the nodes, and the error if it failed.
    """

    outputs: dict[tuple[int, str], list[RecordedChunk]]
    seconds: float
    hops: dict[int, Hop]
    failure: OmnibusError | None
    route: tuple[str, ...]

    def digests(self) -> dict[str, str]:
        """Return the digest of each output, by ``<node>.<output>``."""
        return {f"{node}.{output}": digest_chunks(chunks) for (node, output), chunks in sorted(self.outputs.items())}


def digest_chunks(chunks: Sequence[RecordedChunk], *, cached: bool = False) -> str:
    """Return the digest of an output.

    See ``omnibus.recording.records.KeptOutput.digest``, and ``Fingerprint`` for ``cached``.
    """
    fingerprint = Fingerprint()
    for chunk in chunks:
        fingerprint.add_item(Item(chunk.data, chunk.array))
    return fingerprint.hexdigest(cached=cached)


async def finish_mirrored(running: InflightInvocation, dispatcher: Dispatcher) -> MirroredRun:
    """Wait for the end of ``running``; it is ended on every exit."""
    began, status = time.monotonic(), "cancelled"
    settle_event = asyncio.Event()
    try:
        await _read_all(running)
        status = "done"
    except OmnibusError as error:
        status = "failed"
        return MirroredRun({}, time.monotonic() - began, {}, error, running.invocation.route)
    finally:
        seconds = time.monotonic() - began
        if status == "done":
            dispatcher.complete(running, settle_event.set)
        else:
            dispatcher.finish(running, status)
    await settle_event.wait()  # its stages have reported their times, or had time to
    outputs = {key: chunks for key, tape in running.tapes.items() if (chunks := tape.chunks) is not None}
    return MirroredRun(outputs, seconds, dict(running.hops), None, running.invocation.route)


async def _read_all(running: InflightInvocation) -> None:
    streams = {f"{node}.{output}": stream for (node, output), stream in running.streams.items()}
    try:
        async with asyncio.timeout(max(0.0, running.invocation.deadline - time.time())):
            async for _ in merge_streams(streams):
                pass  # captures have it
    except TimeoutError:
        raise DeadlineExceeded("the comparison exceeded the time limit of the recorded invocation") from None
