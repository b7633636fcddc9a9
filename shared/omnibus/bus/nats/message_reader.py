"""Reader of messages in the event-loop turn in which their bytes arrive.

nats-py reads in a task, which each arrival wakes in another turn, and finds each message by patterns. Most arrivals are
successive messages without headers for Omnibus's handlers, which are read here. After any other input, the bytes are
passed to nats-py until it has read all of them.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

from omnibus.bus import Delivery, Handler

log = logging.getLogger(__name__)

_MESSAGE = b"MSG "
_LINE_END = b"\r\n"
#: Most bytes of a message's first line, as in nats-py, which rejects a longer one.
_MAX_LINE_BYTES = 4096


class MessageReader:
    """Reads the bytes for ``stream``, which nats-py parses with ``parser``.

    ``stats`` are nats-py's counters of received messages and bytes.
    """

    def __init__(
        self, stream: asyncio.StreamReader, parser: Parser, handlers: Mapping[int, Handler], stats: dict[str, int]
    ) -> None:
        self._parser = parser
        self._handlers = handlers
        self._stats = stats
        self._unread: Any = stream._buffer  # type: ignore[attr-defined]
        self._pass_on = stream.feed_data
        self._partial = bytearray()  # of the next message
        self._missing = 0  # at least so many bytes until it is complete

    def feed_data(self, data: bytes) -> None:
        """Deliver the messages that are complete now. Raises nothing."""
        parser = self._parser
        if self._unread or parser.buf or parser.state != AWAITING_CONTROL_LINE:
            self._pass_on(data)  # after the bytes that nats-py has not read yet
            return
        if self._partial:
            self._partial += data
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = bytes(self._partial)
            self._partial.clear()
        at = self._deliver_messages(data)
        if at < len(data):
            self._keep_rest(data[at:] if at else data)

    def _deliver_messages(self, data: bytes) -> int:
        """Deliver complete messages from the start; returns the offset of the rest."""
        at, stats, handlers = 0, self._stats, self._handlers
        while data.startswith(_MESSAGE, at):
            line_end = data.find(_LINE_END, at)
            if line_end < 0:
                break
            try:
                subject, number, *reply, size = data[at + 4 : line_end].split()
                begin, end = line_end + 2, line_end + 2 + int(size)
                handler = handlers.get(int(number))
            except ValueError:
                break
            if handler is None or end + 2 > len(data):
                break
            at = end + 2
            body = data[begin:end]
            stats["in_msgs"] += 1
            stats["in_bytes"] += len(body)
            try:
                handler(Delivery(subject.decode(), body, reply[0].decode() if reply else ""))
            except Exception:  # the reader must survive every message
                log.exception("handler of %s failed", subject.decode())
        return at

    def _keep_rest(self, rest: bytes) -> None:
        """Keep an incomplete message until its rest arrives; pass other input to nats-py."""
        self._missing = self._missing_bytes(rest)
        if self._missing > 0:
            self._partial += rest
        else:
            self._pass_on(rest)

    def _missing_bytes(self, rest: bytes) -> int:
        """Return the least number of missing bytes of an incomplete message.

        0 if it is not a message for a handler of Omnibus.
        """
        line_end = rest.find(_LINE_END)
        if line_end < 0:
            return int(len(rest) < _MAX_LINE_BYTES and rest[: len(_MESSAGE)] == _MESSAGE[: len(rest)])
        if not rest.startswith(_MESSAGE):
            return 0
        try:
            _, number, *_, size = rest[4:line_end].split()
            has_handler = int(number) in self._handlers
            return line_end + 2 + int(size) + 2 - len(rest) if has_handler else 0
        except ValueError:  # nats-py reports it
            return 0
