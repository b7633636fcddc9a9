"""Logs of lines on the bus: the messages of one subject, with one writer at a time.

Messages of the bus are small, so a message is any piece of the lines: its number, ``+`` or ``=``, and the piece. A
message with ``=`` starts a line: an unfinished line before it is dropped, since its writer died. A writer appends after
the last message that it has read; of two writers, one is rejected.
"""

from abc import ABC, abstractmethod
from secrets import token_hex

from omnibus.bus import Bus
from omnibus.bus.subjects import StreamSpec
from omnibus.errors import ProtocolError

#: Bytes of one piece, if the bus allows as many, and of its head.
PIECE_BYTES = 48 * 1024
_HEAD_BYTES = 32


class LineAssembler(ABC):
    """Assembles lines from the messages of a log."""

    def __init__(self) -> None:
        self.number = 0  # of the last message, as the stream counts
        self.pieces = 0
        self._rest = b""

    def add_message(self, data: bytes, number: int = 0) -> bool:
        """Add the next message; returns False without adding it if an earlier one is missing."""
        head, _, piece = data.partition(b"\n")
        if not head[:-1].isdigit():
            raise ProtocolError("a message in a log cannot be read")
        if int(head[:-1]) < self.pieces:
            return True  # known
        if int(head[:-1]) > self.pieces:
            return False
        self.pieces += 1
        self.number = max(self.number, number)
        *lines, self._rest = ((self._rest if head.endswith(b"+") else b"") + piece).split(b"\n")
        for line in lines:
            self.add_line(line)
        return True

    @abstractmethod
    def add_line(self, line: bytes) -> None:
        """Add the next line. Raises ``ProtocolError``."""


class LineWriter:
    """Appends lines to the log on ``subject``, after the lines of ``content``."""

    def __init__(self, bus: Bus, stream: StreamSpec, subject: str, content: LineAssembler | None = None) -> None:
        self._bus = bus
        self._stream = stream
        self._subject = subject
        self._number = content.number if content is not None else 0
        self._pieces = content.pieces if content is not None else 0
        self._writer = token_hex(8)

    async def append_lines(self, data: bytes) -> None:
        """Write ``data``, whole lines; returns once they are stored.

        Raises ``Conflict`` if another client writes this log, and ``BusUnavailable``.
        """
        step = min(PIECE_BYTES, self._bus.max_body - _HEAD_BYTES)
        for begin in range(0, len(data), step):
            await self._append_piece(b"+" if begin else b"=", data[begin : begin + step])

    async def _append_piece(self, kind: bytes, piece: bytes) -> None:
        body = b"%d%b\n%b" % (self._pieces, kind, piece)
        id = f"{self._writer}.{self._pieces}"
        self._number = await self._bus.append_record(self._stream, self._subject, body, id, self._number)
        self._pieces += 1


async def read_lines(bus: Bus, stream: StreamSpec, subject: str, content: LineAssembler) -> None:
    """Read the lines that ``content`` lacks from the log on ``subject``. Raises ``BusUnavailable`` and
    ``ProtocolError``."""
    for message in await bus.read_subject(stream, subject, content.number):
        if not content.add_message(message.data, message.number):
            raise ProtocolError("a log has lost its beginning: it is kept no longer")
