"""Queue of outgoing events for one client.

A separate task sends them, so that the cancellation of their producer loses none. If the session has a log, events are
logged before they are sent.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from omnibus.errors import TooSlow
from omnibus.recording.sessions import SessionEntry
from omnibus_gateway.realtime.session_log import SessionLog

#: Bytes waiting for the client at which ``wait_room`` blocks.
MAX_WAITING_BYTES = 256 << 10
#: Bytes waiting at which the client is too slow: replies to its own events do not wait for room.
MAX_HELD_BYTES = 64 << 20
#: Seconds that a log entry without events waits for others.
LOG_DELAY_SECONDS = 0.1


class EventSender:
    """Sends texts in the order of ``post_texts``. A send longer than ``stalled_seconds`` raises ``TooSlow``."""

    def __init__(
        self, send: Callable[[str], Awaitable[None]], stalled_seconds: float, log: SessionLog | None = None
    ) -> None:
        self._send = send
        self._stalled_seconds = stalled_seconds
        self._log = log
        self._waiting: deque[str] = deque()
        self._entries: list[SessionEntry] = []
        self._writing: tuple[list[SessionEntry], int] = [], 0  # being logged, and how many texts to send after that
        self._nbytes = 0
        self._posted = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._closed = False

    @property
    def has_log(self) -> bool:
        """True if entries are logged."""
        return self._log is not None

    def post_texts(self, texts: Sequence[str], entry: SessionEntry | None = None) -> None:
        """Log ``entry``, then send ``texts`` in order. Raises ``TooSlow`` if the client does not read."""
        if self._closed:
            return
        if self._nbytes > MAX_HELD_BYTES:
            raise _slow_error()
        self._waiting.extend(texts)
        self._nbytes += sum(map(len, texts))
        if entry is not None:
            self._entries.append(entry)
        if texts:
            self._posted.set()
        elif len(self._entries) == 1:
            asyncio.get_running_loop().call_later(LOG_DELAY_SECONDS, self._posted.set)
        if self._nbytes > MAX_WAITING_BYTES:
            self._room.clear()

    async def wait_room(self) -> None:
        """Wait until few bytes are waiting for the client."""
        await self._room.wait()

    def close(self) -> None:
        """Accept no more and drop the queue: the session continues on another connection."""
        self._closed = True
        self._waiting.clear()
        self._entries.clear()
        self._room.set()

    async def send_texts(self) -> None:
        """Send posted texts forever. Raises ``TooSlow``, ``Conflict``, and the errors of ``send``."""
        while True:
            await self._posted.wait()
            self._posted.clear()
            await self.flush_texts()

    async def flush_texts(self) -> None:
        """Send all waiting texts.

        Raises ``TooSlow``, and ``Conflict`` if another connection has the session.
        """
        while self._waiting or self._entries or self._writing[0]:
            if not self._writing[0]:
                self._writing, self._entries = (self._entries, len(self._waiting)), []
            entries, count = self._writing
            if self._log is not None and entries:
                await self._log.append(entries)  # again, if the previous try was cancelled
            self._writing = [], 0
            for _ in range(min(count, len(self._waiting))):
                await self._send_first()

    async def _send_first(self) -> None:
        text = self._waiting[0]
        try:
            async with asyncio.timeout(self._stalled_seconds):
                await self._send(text)
        except TimeoutError:
            raise _slow_error() from None
        if self._waiting:  # else it was closed meanwhile
            self._waiting.popleft()
            self._nbytes -= len(text)
        if self._nbytes <= MAX_WAITING_BYTES:
            self._room.set()


def _slow_error() -> TooSlow:
    return TooSlow("The client does not read the events sent to it.")
