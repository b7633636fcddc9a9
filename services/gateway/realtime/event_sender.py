"""Events on their way to one client, by a task of their own: none is lost when what made them is cancelled."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from omnibus.errors import TooSlow

#: Bytes that wait for the client before whoever makes more has to wait too.
MAX_WAITING_BYTES = 256 << 10
#: Bytes at which a client is held not to read at all: what it sent itself is answered without waiting.
MAX_HELD_BYTES = 64 << 20


class EventSender:
    """Sends texts in the order in which they were posted. A client that takes none for ``stalled_seconds`` is slow."""

    def __init__(self, send: Callable[[str], Awaitable[None]], stalled_seconds: float) -> None:
        self._send = send
        self._stalled_seconds = stalled_seconds
        self._waiting: deque[str] = deque()
        self._nbytes = 0
        self._posted = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    def post_text(self, text: str) -> None:
        """Send ``text`` after those before it. Raises ``TooSlow`` for a client that reads nothing."""
        if self._nbytes > MAX_HELD_BYTES:
            raise _slow_error()
        self._waiting.append(text)
        self._nbytes += len(text)
        self._posted.set()
        if self._nbytes > MAX_WAITING_BYTES:
            self._room.clear()

    async def wait_room(self) -> None:
        """Wait until few bytes wait for the client."""
        await self._room.wait()

    async def send_texts(self) -> None:
        """Send what is posted, for ever. Raises ``TooSlow``, and whatever ``send`` raises."""
        while True:
            await self._posted.wait()
            await self.flush_texts()
            self._posted.clear()

    async def flush_texts(self) -> None:
        """Send all that waits. Raises ``TooSlow``."""
        while self._waiting:
            text = self._waiting[0]
            try:
                async with asyncio.timeout(self._stalled_seconds):
                    await self._send(text)
            except TimeoutError:
                raise _slow_error() from None
            self._waiting.popleft()
            self._nbytes -= len(text)
            if self._nbytes <= MAX_WAITING_BYTES:
                self._room.set()


def _slow_error() -> TooSlow:
    return TooSlow("The client does not read the events that it is sent.")
