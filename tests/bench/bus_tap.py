"""Audio of answers as it crosses the bus: when the engines had made each piece, whoever takes it from there.

    python -m tests.bench.bus_tap NATS_URL

A program of its own, which only notes what comes until it is told to end: then it prints, as JSON, what each invocation
sent to its gateway: its seed, when it was sent, and for each piece of audio the time (monotonic seconds, which all
programs of a machine share) and its samples.
"""

import asyncio
import json
import signal
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from omnibus.bus import Delivery, subjects
from omnibus.bus.messages import Chunk, decode_replies
from omnibus.bus.nats import NatsBus
from omnibus.errors import ProtocolError
from omnibus.graph import Invocation, decode_invocation
from omnibus.settings import BusSettings

AUDIO = "audio"


@dataclass
class SentAudio:
    """Audio of one invocation: ``pieces`` are times and samples."""

    seed: int
    sent: float
    pieces: list[tuple[float, int]] = field(default_factory=list)
    whole: bool = False

    @property
    def samples(self) -> int:
        return sum(samples for _, samples in self.pieces)


class BusTap:
    """Notes frames as they come, and reads them when all is over: reading takes time that others need."""

    def __init__(self) -> None:
        self._frames: list[tuple[float, str, bytes]] = []

    def note(self, delivery: Delivery) -> None:
        self._frames.append((time.monotonic(), delivery.subject, delivery.data))

    def read(self) -> dict[str, SentAudio]:
        """What was sent, by invocation, in its order."""
        found: dict[str, SentAudio] = {}
        for at, subject, data in self._frames:
            try:
                if subject.startswith(f"{subjects.ROOT}.task."):
                    self._add_invocation(found, at, decode_invocation(data))
                else:
                    for reply in decode_replies(data):
                        if isinstance(reply, Chunk) and reply.output == AUDIO and reply.inv in found:
                            self._add_chunk(found[reply.inv], at, reply)
            except ProtocolError:  # the server's own word, that nobody listens
                continue
        return found

    def _add_invocation(self, found: dict[str, SentAudio], at: float, invocation: Invocation) -> None:
        if any(output == AUDIO for _, output in invocation.outputs):
            found.setdefault(invocation.id, SentAudio(invocation.seed, at))

    def _add_chunk(self, sent: SentAudio, at: float, chunk: Chunk) -> None:
        tensor = chunk.handle if chunk.handle is not None else chunk.inline
        if tensor is not None:
            rows = chunk.rows
            sent.pieces.append((at, rows[1] - rows[0] if rows is not None else int(tensor.shape[0])))
        sent.whole |= chunk.last


async def listen(url: str) -> dict[str, SentAudio]:
    """What is sent until this process is told to end."""
    tap, over = BusTap(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    bus = await NatsBus.connect(BusSettings(url=url), "tap")
    for subject in (f"{subjects.ROOT}.task.>", f"{subjects.ROOT}.reply.*"):
        await bus.subscribe(subject, tap.note)
    print("listening", flush=True)
    await over.wait()
    await bus.drain()
    return tap.read()


async def start(url: str) -> asyncio.subprocess.Process:
    """Start one, and wait until it listens."""
    tap = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.bus_tap", url, stdout=asyncio.subprocess.PIPE, limit=1 << 28
    )
    assert tap.stdout is not None
    await tap.stdout.readline()
    return tap


async def stop(tap: asyncio.subprocess.Process) -> list[SentAudio]:
    """What ``tap`` has noted."""
    tap.terminate()
    found: list[dict[str, Any]] = json.loads((await tap.communicate())[0])
    return [msgspec.convert(each, SentAudio) for each in found]


if __name__ == "__main__":
    print(msgspec.json.encode(list(asyncio.run(listen(sys.argv[1])).values())).decode())
