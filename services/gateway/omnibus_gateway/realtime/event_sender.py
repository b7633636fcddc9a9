"""Queue of outgoing events for one client.

A separate task sends them, so that the cancellation of their producer loses none. If the session has a log, events are
logged before they are sent.

Log of one session at this gateway: each change is on the bus before its client receives it.

Errors of realtime events, with codes that clients recognize.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Container, Sequence
from typing import Any, Literal

from omnibus.bus import Bus, subjects
from omnibus.errors import BadRequest, BusUnavailable, Conflict, NotFound, OmnibusError, Overloaded, TooSlow
from omnibus.recording.sessions import (
    LineAssembler,
    LineWriter,
    SessionEntries,
    SessionEntry,
    encode_entries,
    read_session,
)
from omnibus_gateway.tenancy.tenant import LogBudget, current_tenant

log = logging.getLogger(__name__)

#: Reads of a log for one claim: the previous connection may write to it at the same time.
MAX_CLAIMS = 50


class SessionLog:
    """Writer of the log of session ``id``, after the ``known_lines`` entries."""

    def __init__(
        self, bus: Bus, id: str, known_lines: LineAssembler | None = None, budget: LogBudget | None = None
    ) -> None:
        self._budget = budget or LogBudget()
        self._tenant = current_tenant().name
        self._id = id
        self._writer = LineWriter(
            bus, subjects.RESPONSES, subjects.response_subject(subjects.subject_token(id)), known_lines
        )
        self._is_lost = False

    async def append(self, entries: Sequence[SessionEntry]) -> None:
        """Write ``entries``, all or none. Raises ``Conflict`` if another connection has the session.

        If the bus is unavailable or the tenant's budget is spent, the session continues but can no longer be resumed.
        A log with a gap would restore a wrong state.
        """
        if self._is_lost or not entries:
            return
        data = encode_entries(entries) + b"\n"
        try:
            self._budget.check_room(self._tenant)
            self._budget.count(self._tenant, len(data))
            await self._writer.append_lines(data)
        except (BusUnavailable, Overloaded) as error:
            self._is_lost = True
            log.warning("%s can no longer be resumed: %s", self._id, error)


async def claim_log(bus: Bus, id: str, session_entries: SessionEntries, budget: LogBudget | None = None) -> SessionLog:
    """Take over the log of session ``id``: the entry written here stops the previous connection.

    The previous connection may still be running. Its entries up to the new one are added to ``session_entries``.
    Raises ``Conflict`` if it writes faster than the log can be read, ``BusUnavailable`` and ``ProtocolError``.
    """
    for _ in range(MAX_CLAIMS):
        session_log = SessionLog(bus, id, session_entries, budget)
        try:
            await session_log.append([SessionEntry(at=time.time())])
        except Conflict:
            await read_session(bus, id, session_entries)
        else:
            return session_log
    raise Conflict("another connection writes to this session without a pause: close it, and resume the session again")


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


#: Codes that clients handle.
ACTIVE_RESPONSE = "conversation_already_has_active_response"
NO_ACTIVE_RESPONSE = "response_cancel_not_active"
EMPTY_COMMIT = "input_audio_buffer_commit_empty"
SESSION_EXPIRED, IDLE_TIMEOUT = "session_expired", "session_idle_timeout"


class EventRefused(BadRequest):
    """Event that cannot be applied now; ``event_code`` is the code of its error."""

    def __init__(self, message: str, event_code: str, param: str = "") -> None:
        super().__init__(message, param=param)
        self.event_code = event_code


def unknown_item_error(id: str, param: str) -> OmnibusError:
    """Return the error for an event about an unknown item."""
    return NotFound(f"The conversation has no item {id[:128]!r}.", param=param)


def require_item(items: Container[str], id: str, action: Literal["retrieve", "truncate", "delete"]) -> None:
    """Raise ``EventRefused`` with the code for a race if ``id`` is unknown.

    An item may have been deleted when an event about it arrives. Some clients, such as pipecat, end the session at any
    other code.
    """
    if id not in items:
        raise EventRefused(
            f"The conversation has no item {id[:128]!r}.", f"item_{action}_invalid_item_id", param="item_id"
        )


def describe_error(error: OmnibusError) -> dict[str, Any]:
    """Return the ``type``, ``code``, ``message`` and ``param`` of an error event."""
    code = error.event_code if isinstance(error, EventRefused) else error.code
    return {"type": error.kind, "code": code, "message": error.message, "param": error.param or None}
