"""Events on their way to one client, by a task of their own: none is lost when what made them is cancelled.

Where the session has a log, events are in it before they are sent.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from omnibus.errors import TooSlow
from omnibus.recording.sessions import SessionEntry
from services.gateway.realtime.session_log import SessionLog

#: Bytes that wait for the client before whoever makes more has to wait too.
MAX_WAITING_BYTES = 256 << 10
#: Bytes at which a client is held not to read at all: what it sent itself is answered without waiting.
MAX_HELD_BYTES = 64 << 20
#: Seconds that an entry without events may wait for others.
LOG_DELAY_SECONDS = 0.1


class EventSender:
    """Sends texts in the order in which they were posted. A client that takes none for ``stalled_seconds`` is slow."""

    def __init__(
        self, send: Callable[[str], Awaitable[None]], stalled_seconds: float, log: SessionLog | None = None
    ) -> None:
        self._send = send
        self._stalled_seconds = stalled_seconds
        self._log = log
        self._waiting: deque[str] = deque()
        self._entries: list[SessionEntry] = []
        self._writing: tuple[list[SessionEntry], int] = [], 0  # being logged, and the texts that may be sent then
        self._nbytes = 0
        self._posted = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._closed = False

    @property
    def has_log(self) -> bool:
        """True if ``entry`` of what is posted is kept."""
        return self._log is not None

    def post_texts(self, texts: Sequence[str], entry: SessionEntry | None = None) -> None:
        """Log ``entry``, and send ``texts`` after those before it. Raises ``TooSlow`` for who reads nothing."""
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
        """Wait until few bytes wait for the client."""
        await self._room.wait()

    def close(self) -> None:
        """Take no more, and forget what waits: the session goes on at another connection."""
        self._closed = True
        self._waiting.clear()
        self._entries.clear()
        self._room.set()

    async def send_texts(self) -> None:
        """Send what is posted, for ever. Raises ``TooSlow``, ``Conflict``, and whatever ``send`` raises."""
        while True:
            await self._posted.wait()
            self._posted.clear()
            await self.flush_texts()

    async def flush_texts(self) -> None:
        """Send all that waits. Raises ``TooSlow``, and ``Conflict`` where another connection has the session."""
        while self._waiting or self._entries or self._writing[0]:
            if not self._writing[0]:
                self._writing, self._entries = (self._entries, len(self._waiting)), []
            entries, count = self._writing
            if self._log is not None and entries:
                await self._log.append(entries)  # once more where it was cancelled before
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
    return TooSlow("The client does not read the events that it is sent.")
