"""Events of a stored response in JetStream, written before a client has them: what is in this log is the response.

The log is the lines of events, one behind the other; lines that begin with ``#`` are for gateways alone and hold the
ids of the answer's tokens. How lines are messages of the bus is in ``omnibus.recording.line_log``.
"""

import asyncio
from array import array
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from omnibus.bus import Bus, Delivery, subjects
from omnibus.errors import ProtocolError
from omnibus.recording.line_log import LineAssembler, LineWriter, read_lines
from services.gateway.openai.responses.sequence import NumberedEvent, read_event

#: Seconds of silence after which a reader asks whether anybody still writes.
SILENCE_SECONDS = 1.0
#: Ids of tokens as they are kept: 4 bytes each.
_IDS = "I"


class LogContent(LineAssembler):
    """The lines of a log: ``events``, and the ids of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[NumberedEvent] = []
        self.token_ids: list[int] = []

    @property
    def is_over(self) -> bool:
        """True if the last event is there."""
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
            raise ProtocolError(f"the log of a response cannot be read: {error}") from error


class ResponseLog:
    """The log of response ``id``, to be written to; ``count`` is told how many bytes."""

    def __init__(
        self, bus: Bus, id: str, known: LogContent | None = None, count: Callable[[int], None] | None = None
    ) -> None:
        self._count = count
        self._writer = LineWriter(bus, subjects.RESPONSES, subjects.response_subject(id), known)

    async def append(self, events: Sequence[NumberedEvent], token_ids: Sequence[int] = ()) -> None:
        """Write ``events``, and the ids of the tokens that they are made of; returns once they are stored.

        Raises ``Conflict`` when another gateway writes this log, and ``BusUnavailable``.
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
    """All of a log. Raises ``BusUnavailable`` and ``ProtocolError``."""
    content = LogContent()
    await _read_more(bus, id, content)
    return content


async def _read_more(bus: Bus, id: str, content: LogContent) -> None:
    await read_lines(bus, subjects.RESPONSES, subjects.response_subject(id), content)


class LogReader:
    """Follows a log from its beginning, while it is written."""

    def __init__(self, bus: Bus, id: str) -> None:
        self._bus = bus
        self._id = id
        self._content = LogContent()

    @property
    def is_over(self) -> bool:
        return self._content.is_over

    async def follow(self) -> AsyncIterator[list[NumberedEvent]]:
        """Yield new events as they come, none after a while of silence; ends with the last event.

        Raises ``BusUnavailable`` and ``ProtocolError``.
        """
        arrived: asyncio.Queue[Delivery] = asyncio.Queue()
        stop = await self._bus.subscribe(subjects.response_subject(self._id), arrived.put_nowait)
        sent = 0
        try:
            await _read_more(self._bus, self._id, self._content)
            while True:
                events = self._content.events
                yield events[sent:]
                sent = len(events)
                if self._content.is_over:
                    return
                await self._wait_for_more(arrived)
        finally:
            await stop()

    async def _wait_for_more(self, arrived: "asyncio.Queue[Delivery]") -> None:
        """Take what arrives; after a silence, and where a message is missing, read the stream."""
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                whole = self._content.add_message((await arrived.get()).data)
            while whole and not arrived.empty():
                whole = self._content.add_message(arrived.get_nowait().data)
        except TimeoutError:
            whole = False
        if not whole:
            await _read_more(self._bus, self._id, self._content)
