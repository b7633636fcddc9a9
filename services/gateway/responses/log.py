"""Events of a stored response in JetStream, written before a client has them: what is in this log is the response.

The log is the lines of events, one behind the other; lines that begin with ``#`` are for gateways alone and hold the
ids of the answer's tokens. Messages of the bus are small, so that a message is any piece of those lines: its own
number, ``+`` or ``=``, and the piece. One with ``=`` begins a line: what was left of one before it is dropped, for its
writer did not live to end it. A writer appends behind the message that it knows as the last one; of two, one is
refused.
"""

import asyncio
from array import array
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Sequence
from secrets import token_hex

import msgspec

from omnibus.bus import Bus, Delivery, Stored, subjects
from omnibus.errors import ProtocolError
from services.gateway.openai.responses.sequence import NumberedEvent, read_event

#: Bytes of one piece: well below the bus's limit.
_PIECE_BYTES = 48 * 1024
#: Seconds of silence after which a reader asks whether anybody still writes.
SILENCE_SECONDS = 1.0
#: Ids of tokens as they are kept: 4 bytes each.
_IDS = "I"


class LogContent:
    """The lines of a log, put together from its messages: ``events``, and the ids of tokens."""

    def __init__(self) -> None:
        self.events: list[NumberedEvent] = []
        self.token_ids: list[int] = []
        self.number = 0  # of the last message, as the stream counts
        self.pieces = 0
        self._rest = b""

    @property
    def is_over(self) -> bool:
        """True if the last event is there."""
        return bool(self.events) and self.events[-1].is_terminal

    @property
    def is_torn(self) -> bool:
        """True if the last line has no end."""
        return bool(self._rest)

    def add_message(self, data: bytes, number: int = 0) -> bool:
        """Take the next message; False, and nothing is taken, when another one is missing before it."""
        head, _, piece = data.partition(b"\n")
        if not head[:-1].isdigit():
            raise ProtocolError("a message in the log of a response cannot be read")
        if int(head[:-1]) < self.pieces:
            return True  # known
        if int(head[:-1]) > self.pieces:
            return False
        self.pieces += 1
        self.number = max(self.number, number)
        *lines, self._rest = ((self._rest if head.endswith(b"+") else b"") + piece).split(b"\n")
        for line in lines:
            self._add_line(line)
        return True

    def _add_line(self, line: bytes) -> None:
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
    """The log of response ``id``, to be written to."""

    def __init__(self, bus: Bus, id: str, known: LogContent | None = None) -> None:
        self._bus = bus
        self._subject = subjects.response_subject(id)
        self._number = known.number if known is not None else 0
        self._pieces = known.pieces if known is not None else 0
        self._writer = token_hex(8)

    async def append(self, events: Sequence[NumberedEvent], token_ids: Sequence[int] = ()) -> None:
        """Write ``events``, and the ids of the tokens that they are made of; returns once they are stored.

        Raises ``Conflict`` when another gateway writes this log, and ``BusUnavailable``.
        """
        lines = [event.body for event in events]
        if token_ids:
            lines.append(b"#" + b64encode(array(_IDS, token_ids).tobytes()))
        if not lines:
            return
        data = b"\n".join(lines) + b"\n"
        for begin in range(0, len(data), _PIECE_BYTES):
            await self._append_piece(b"+" if begin else b"=", data[begin : begin + _PIECE_BYTES])

    async def _append_piece(self, kind: bytes, piece: bytes) -> None:
        body = b"%d%b\n%b" % (self._pieces, kind, piece)
        id = f"{self._writer}.{self._pieces}"
        self._number = await self._bus.append_record(subjects.RESPONSES, self._subject, body, id, self._number)
        self._pieces += 1


async def read_log(bus: Bus, id: str) -> LogContent:
    """All of a log. Raises ``BusUnavailable`` and ``ProtocolError``."""
    content = LogContent()
    await _read_more(bus, id, content)
    return content


async def _read_more(bus: Bus, id: str, content: LogContent) -> None:
    for stored in await bus.read_subject(subjects.RESPONSES, subjects.response_subject(id), content.number):
        _add_stored(content, stored)


def _add_stored(content: LogContent, stored: Stored) -> None:
    if not content.add_message(stored.data, stored.number):
        raise ProtocolError("the log of a response has lost its beginning: it is kept no longer")


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
