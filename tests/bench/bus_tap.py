"""Record when engines publish each piece of audio on the bus.

    python -m tests.bench.bus_tap NATS_URL [--edges]

This separate program records messages until a signal ends it. Then it prints, as JSON, for each invocation:

- Its seed, and when it was sent.
- The time and samples of each piece of audio sent to the gateway. Times are monotonic seconds, which all programs of a
  machine share.
- When the first piece of each output arrived. With ``--edges``, this includes outputs sent from executor to executor.
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
from omnibus.process.tuning import die_with_parent
from omnibus.settings import BusSettings

AUDIO = "audio"


@dataclass
class SentAudio:
    """Audio of one invocation; ``pieces`` are times and samples, ``first`` is when each output began."""

    seed: int
    sent: float
    pieces: list[tuple[float, int]] = field(default_factory=list)
    whole: bool = False
    first: dict[str, float] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        return sum(samples for _, samples in self.pieces)


class BusTap:
    """Record frames as they arrive, and decode them at the end.

    Decoding would take time from other programs.
    """

    def __init__(self) -> None:
        self._frames: list[tuple[float, str, bytes]] = []

    def note_message(self, delivery: Delivery) -> None:
        self._frames.append((time.monotonic(), delivery.subject, delivery.data))

    def read_audio(self) -> dict[str, SentAudio]:
        """Messages of the tap by invocation, in the order of sending."""
        records: dict[str, SentAudio] = {}
        for at, subject, data in self._frames:
            try:
                if subject.startswith(f"{subjects.ROOT}.task."):
                    self._add_invocation(records, at, decode_invocation(data))
                else:
                    for reply in decode_replies(data):
                        if isinstance(reply, Chunk) and reply.inv in records:
                            self._add_chunk(records[reply.inv], at, reply)
            except ProtocolError:  # the server's own message, that the subject has no listener
                continue
        return records

    def _add_invocation(self, records: dict[str, SentAudio], at: float, invocation: Invocation) -> None:
        if any(output == AUDIO for _, output in invocation.outputs):
            records.setdefault(invocation.id, SentAudio(invocation.seed, at))

    def _add_chunk(self, record: SentAudio, at: float, chunk: Chunk) -> None:
        record.first.setdefault(chunk.output, at)
        if chunk.output != AUDIO:
            return
        tensor = chunk.handle if chunk.handle is not None else chunk.inline
        if tensor is not None:
            rows = chunk.rows
            record.pieces.append((at, rows[1] - rows[0] if rows is not None else int(tensor.shape[0])))
        record.whole |= chunk.last


async def record_messages(url: str, *, edges: bool) -> dict[str, SentAudio]:
    """Record messages until this process is ended."""
    tap, over = BusTap(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    bus = await NatsBus.connect(BusSettings(url=url), "tap")
    for subject in [f"{subjects.ROOT}.task.>", f"{subjects.ROOT}.reply.*", *[f"{subjects.ROOT}.edge.*"] * edges]:
        await bus.subscribe(subject, tap.note_message)
    print("listening", flush=True)
    await over.wait()
    await bus.drain()
    return tap.read_audio()


async def start_tap(url: str, *, edges: bool = False) -> asyncio.subprocess.Process:
    """Start a tap, and wait until it listens."""
    command = [sys.executable, "-m", "tests.bench.bus_tap", url, *["--edges"] * edges]
    tap = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, limit=1 << 28, preexec_fn=die_with_parent()
    )
    assert tap.stdout is not None
    await tap.stdout.readline()
    return tap


async def stop_tap(tap: asyncio.subprocess.Process) -> list[SentAudio]:
    """Stop ``tap`` and return its records."""
    tap.terminate()
    records: list[dict[str, Any]] = json.loads((await tap.communicate())[0])
    return [msgspec.convert(each, SentAudio) for each in records]


if __name__ == "__main__":
    made = asyncio.run(record_messages(sys.argv[1], edges="--edges" in sys.argv[2:]))
    print(msgspec.json.encode(list(made.values())).decode())
