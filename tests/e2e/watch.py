"""Messages on the bus and over HTTP, for tests to inspect."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from omnibus.bus import Delivery, messages, subjects
from omnibus.bus.messages import Chunk, InvocationEnd
from tests.e2e.system import System


class Watch:
    """All messages on the bus since the opening, in the server's order."""

    def __init__(self) -> None:
        self.seen: list[Delivery] = []
        self._news = asyncio.Event()

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, system: System) -> AsyncIterator["Watch"]:
        watch = cls()
        async with system.bus() as bus:
            await bus.subscribe(f"{subjects.ROOT}.>", watch._see)
            yield watch

    def _see(self, delivery: Delivery) -> None:
        self.seen.append(delivery)
        self._news.set()

    async def until(self, true: Callable[[], object], within: float = 60.0) -> None:
        """Wait until ``true``, which is evaluated after every message."""
        async with asyncio.timeout(within):
            while not true():
                self._news.clear()
                await self._news.wait()

    async def first(self, subject: str) -> Delivery:
        """The first message whose subject begins with ``subject``."""
        await self.until(lambda: any(one.subject.startswith(subject) for one in self.seen))
        return next(one for one in self.seen if one.subject.startswith(subject))

    async def heartbeat(self, executor: str) -> None:
        """Wait for the next ready heartbeat of ``executor``.

        It then counts as alive for a while in any case.
        """
        before = len(self.seen)
        status = subjects.event_subject(subjects.EXECUTOR)
        marker = f'"id":"{executor}"'.encode()
        await self.until(lambda: any(one.subject == status and marker in one.data for one in self.seen[before:]))

    async def end(self, invocation: str) -> InvocationEnd:
        return messages.decode_end((await self.first(subjects.end_subject(invocation))).data)

    def replies(self) -> list[Any]:
        """Replies of executors to a gateway, in order."""
        frames = [d.data for d in self.seen if d.subject.startswith("omnibus.reply.") and d.data.startswith(b"{")]
        return [message for frame in frames for message in messages.decode_replies(frame)]

    def chunks(self, invocation: str, output: str) -> list[Chunk]:
        """Chunks of ``output`` that went to a gateway, in order."""
        all_replies = self.replies()
        return [m for m in all_replies if isinstance(m, Chunk) and m.inv == invocation and m.output == output]

    def ids(self, invocation: str) -> list[int]:
        """The token ids of an answer."""
        return [id for chunk in self.chunks(invocation, "text") for id in chunk.data.get("ids", [])]


def parse_events(body: bytes) -> list[dict[str, Any]]:
    """The JSON of every server-sent event but the closing mark."""
    lines = [line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line]
    return [msgspec.json.decode(line) for line in lines if line != b"[DONE]"]
