"""The bus interface of Omnibus; ``bus.nats`` implements it on NATS servers."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol

from omnibus.bus.subjects import INVOCATIONS, StreamSpec

#: Bytes reserved in each message for its headers: a trace, a record's id.
_HEADER_ROOM_BYTES = 1024


def body_room(max_payload: int) -> int:
    """Return the largest body for messages of ``max_payload`` bytes."""
    return max(max_payload - _HEADER_ROOM_BYTES, max_payload // 2)


class Delivery(NamedTuple):
    """One message as it arrived. ``refused`` is set if the server found no subscriber for a publish."""

    subject: str
    data: bytes
    reply: str = ""
    headers: Mapping[str, str] | None = None
    refused: bool = False


class StreamState(NamedTuple):
    """A stream of JetStream. ``limit`` is in bytes, negative for none; ``last`` counts all messages ever stored.

    ``consumers`` are the durable ones: the messages that each must still get, and those that it has not acknowledged.
    """

    name: str
    messages: int
    bytes: int
    limit: int
    last: int
    consumers: Mapping[str, tuple[int, int]]


class Stored(NamedTuple):
    """A message that a stream has stored. ``number`` counts the stream's messages from 1."""

    number: int
    subject: str
    data: bytes


#: Called from the connection's reader: it must not block. Start a task for long work.
Handler = Callable[[Delivery], None]

#: A manually driven endpoint: gets a delivery, yields the replies. The bus ends them with an empty message.
Responder = Callable[[Delivery], AsyncIterator[bytes]]


class Bus(Protocol):
    """Interface of a bus: publish, subscribe, request, record. All waits are bounded."""

    @property
    def connected(self) -> bool: ...

    @property
    def reconnects(self) -> int:
        """Number of reconnects. Messages sent around a reconnect may be lost."""

    @property
    def clustered(self) -> bool:
        """True with several servers: a client that one server cannot find may be connecting to another one."""

    @property
    def max_body(self) -> int:
        """Size of the largest message body that fits together with headers."""

    def publish(
        self,
        subject: str,
        data: bytes,
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
        lazy: bool = False,
    ) -> None:
        """Pass ``data`` to the connection without waiting; ``lazy`` messages may be sent with the next ones.

        Raises ``TooLarge`` if headers and ``data`` together exceed the payload limit, and ``BusUnavailable`` if the
        connection is closed or its buffer is full.
        """

    def call_before_flush(self, publish: Callable[[], None]) -> None:
        """Call ``publish`` before published messages are sent.

        Another turn of the event loop would require another poll of the sockets. Its exceptions are logged.
        """

    def flush_soon(self) -> None:
        """Send published messages with those of the event loop's next turn.

        They are sent within a millisecond.
        """

    async def subscribe(self, subject: str, handler: Handler, queue: str = "") -> Callable[[], Awaitable[None]]:
        """Deliver messages to ``handler`` until you await the returned function."""

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        """Return one reply. Raises ``NotFound`` without a subscriber, and ``DeadlineExceeded``."""

    def request_stream(
        self, subject: str, data: bytes, timeout: float, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[bytes]:
        """Yield replies until the empty message; ``timeout`` bounds each wait."""

    async def add_responder(self, subject: str, responder: Responder, queue: str = "") -> Callable[[], Awaitable[None]]:
        """Answer requests on ``subject`` with a stream of messages."""

    async def register_service(
        self,
        name: str,
        metadata: dict[str, str],
        endpoints: Mapping[str, tuple[str, Responder]],
        stats: Callable[[str], Any] | None = None,
    ) -> Callable[[], Awaitable[None]]:
        """Register as a NATS micro service; ``endpoints`` maps a name to subject and responder.

        ``stats`` returns the data that ``nats service stats`` shows for an endpoint. Returns a function that stops the
        service.
        """

    async def open_records(self, seconds: float, limit: int, stream: StreamSpec = INVOCATIONS) -> None:
        """Create or verify ``stream`` (``limit`` bytes, kept for ``seconds``). Raises ``Fatal`` if it cannot."""

    def publish_record(self, subject: str, data: bytes, id: str) -> None:
        """Store one record without waiting; ``id`` makes a repeat harmless.

        Records without an acknowledgement are sent a few times, and then counted by ``records_lost``.
        """

    @property
    def records_lost(self) -> int:
        """Number of records that were dropped because no stream stored them."""

    async def read_records(self, subject: str, stream: StreamSpec = INVOCATIONS) -> list[Delivery]:
        """Return all stored records on ``subject``, oldest first."""

    async def append_record(self, stream: StreamSpec, subject: str, data: bytes, id: str, after: int) -> int:
        """Store a record if number ``after`` is the last on ``subject``.

        ``after`` is 0 if ``subject`` is empty. Returns the record's number. ``id`` makes a repeat harmless. Raises
        ``Conflict`` if another client has written, and ``BusUnavailable`` if no stream acknowledges it.
        """

    async def read_subject(self, stream: StreamSpec, subject: str, after: int = 0) -> list[Stored]:
        """Return the messages of ``stream`` on ``subject`` after number ``after``, oldest first."""

    async def list_streams(self) -> list[StreamState]:
        """Return all streams with their consumers' progress. Raises ``BusUnavailable``."""

    async def read_latest(self, stream: StreamSpec, count: int, below: int = 0) -> list[Stored]:
        """Return the last ``count`` messages of ``stream``, before number ``below`` if given.

        The oldest is first. Empty only if there are none. Removed messages may reduce their number.
        """

    async def purge_subject(self, stream: StreamSpec, subject: str) -> int:
        """Remove the messages of ``stream`` on ``subject``; returns their number."""

    async def drain(self) -> None:
        """Stop receiving, finish the received messages, close."""
