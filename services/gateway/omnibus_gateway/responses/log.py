"""Event logs of stored responses in JetStream. An event reaches clients only after its log.

The log consists of lines, one per event. Lines that begin with ``#`` are for gateways only and contain the ids of the
answer's tokens. ``omnibus.recording.sessions`` describes how lines become messages of the bus.
"""

import asyncio
from array import array
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from omnibus.bus import Bus, Delivery, subjects
from omnibus.errors import ProtocolError
from omnibus.recording.sessions import LineAssembler, LineWriter, read_lines
from omnibus_gateway.openai.responses.sequence import NumberedEvent, read_event

#: Seconds of silence after which a reader checks for a writer.
SILENCE_SECONDS = 1.0
#: Format of stored token ids: 4 bytes each.
_IDS = "I"


class LogContent(LineAssembler):
    """The lines of a log: ``events`` and the ids of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[NumberedEvent] = []
        self.token_ids: list[int] = []

    @property
    def is_over(self) -> bool:
        """True if the log has the last event."""
        return bool(self.events) and self.events[-1].is_terminal

    def add_line(self, line: bytes) -> None:
        try:
            if line.startswith(b"#"):
                ids = array(_IDS)
                ids.frombytes(b64decode(line[1:]))
                self.token_ids.extend(ids)
            else:
                self.events.append(read_event(line))
        except (msgspec.MsgspecError, ValueError) as error:
            raise ProtocolError(f"cannot decode the log of a response: {error}") from error


class ResponseLog:
    """Writer of the log of response ``id``. It calls ``count`` with the bytes of each append."""

    def __init__(
        self, bus: Bus, id: str, known_content: LogContent | None = None, count: Callable[[int], None] | None = None
    ) -> None:
        self._count = count
        self._writer = LineWriter(bus, subjects.RESPONSES, subjects.response_subject(id), known_content)

    async def append(self, events: Sequence[NumberedEvent], token_ids: Sequence[int] = ()) -> None:
        """Append ``events`` and the ids of their tokens; returns once stored.

        Raises ``Conflict`` if another gateway writes this log, and ``BusUnavailable``.
        """
        lines = [event.body for event in events]
        if token_ids:
            lines.append(b"#" + b64encode(array(_IDS, token_ids).tobytes()))
        if lines:
            data = b"\n".join(lines) + b"\n"
            if self._count is not None:
                self._count(len(data))
            await self._writer.append_lines(data)


async def read_log(bus: Bus, id: str) -> LogContent:
    """Read a complete log. Raises ``BusUnavailable`` and ``ProtocolError``."""
    content = LogContent()
    await _read_more(bus, id, content)
    return content


async def _read_more(bus: Bus, id: str, content: LogContent) -> None:
    await read_lines(bus, subjects.RESPONSES, subjects.response_subject(id), content)


class LogReader:
    """Reader that follows a log from its beginning while it grows."""

    def __init__(self, bus: Bus, id: str) -> None:
        self._bus = bus
        self._id = id
        self._content = LogContent()

    @property
    def is_over(self) -> bool:
        return self._content.is_over

    async def follow(self) -> AsyncIterator[list[NumberedEvent]]:
        """Yield new events as they arrive, and [] after a silence.

        Raises ``BusUnavailable`` and ``ProtocolError``.
        """
        deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
        stop = await self._bus.subscribe(subjects.response_subject(self._id), deliveries.put_nowait)
        sent_count = 0
        try:
            await _read_more(self._bus, self._id, self._content)
            while True:
                events = self._content.events
                yield events[sent_count:]
                sent_count = len(events)
                if self._content.is_over:
                    return
                await self._wait_for_more(deliveries)
        finally:
            await stop()

    async def _wait_for_more(self, deliveries: "asyncio.Queue[Delivery]") -> None:
        """Read what arrives. After a silence or a missing message, read the stream."""
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                whole = self._content.add_message((await deliveries.get()).data)
            while whole and not deliveries.empty():
                whole = self._content.add_message(deliveries.get_nowait().data)
        except TimeoutError:
            whole = False
        if not whole:
            await _read_more(self._bus, self._id, self._content)
