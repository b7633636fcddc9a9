"""The bus as the rest of Omnibus sees it. ``bus.nats`` is the real one, ``bus.memory`` one process."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol

from omnibus.bus.subjects import INVOCATIONS, StreamSpec

#: Bytes kept free in each message for its headers: a trace, a record's id.
_HEADER_ROOM_BYTES = 1024


def body_room(max_payload: int) -> int:
    """Return the bytes that a body may have in messages of ``max_payload`` bytes."""
    return max(max_payload - _HEADER_ROOM_BYTES, max_payload // 2)


class Delivery(NamedTuple):
    """One message as it arrived. ``refused`` is set when the server found no subscriber for a publish."""

    subject: str
    data: bytes
    reply: str = ""
    headers: Mapping[str, str] | None = None
    refused: bool = False


class StreamState(NamedTuple):
    """A stream of JetStream. ``limit`` is in bytes, negative for none; ``last`` counts all that ever came.

    ``consumers`` are the durable ones: what each has still to get, and what it got and has not acknowledged.
    """

    name: str
    messages: int
    bytes: int
    limit: int
    last: int
    consumers: Mapping[str, tuple[int, int]]


class Stored(NamedTuple):
    """A message that a stream has kept. ``number`` counts the stream's messages from 1."""

    number: int
    subject: str
    data: bytes


#: Called in the reader's turn of the event loop: it must not block; long work goes to a task.
Handler = Callable[[Delivery], None]

#: A hand-driven endpoint: gets a delivery, yields the replies. The bus ends them with an empty message.
Responder = Callable[[Delivery], AsyncIterator[bytes]]


class Bus(Protocol):
    """Publish, subscribe, request, record. All waits are bounded."""

    @property
    def connected(self) -> bool: ...

    @property
    def reconnects(self) -> int:
        """Number of reconnects; what was under way at a reconnect may be lost."""

    @property
    def clustered(self) -> bool:
        """True if there are several servers: somebody whom the server cannot find may be on the way to another one."""

    @property
    def max_body(self) -> int:
        """Bytes of a message's body that always fit beside its headers."""

    def publish(
        self,
        subject: str,
        data: bytes,
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
        lazy: bool = False,
    ) -> None:
        """Hand ``data`` to the connection; never waits. What is ``lazy`` may leave with what is published next.

        Raises ``TooLarge`` when headers and ``data`` together are over the payload limit, and ``BusUnavailable`` when
        the connection is closed or its buffer is full.
        """

    def call_before_flush(self, publish: Callable[[], None]) -> None:
        """Call ``publish`` before what was published leaves: a turn of its own would cost another look at the sockets.
        What it raises is logged."""

    def flush_soon(self) -> None:
        """Let what is published leave with what the next turn of the event loop brings, within a millisecond."""

    async def subscribe(self, subject: str, handler: Handler, queue: str = "") -> Callable[[], Awaitable[None]]:
        """Deliver to ``handler`` until the returned function is awaited."""

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        """One reply. Raises ``NotFound`` without a subscriber and ``DeadlineExceeded``."""

    def request_stream(
        self, subject: str, data: bytes, timeout: float, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[bytes]:
        """Replies until the empty message; ``timeout`` bounds each wait."""

    async def add_responder(self, subject: str, responder: Responder, queue: str = "") -> Callable[[], Awaitable[None]]:
        """Answer requests on ``subject`` with a stream of messages."""

    async def register_service(
        self,
        name: str,
        metadata: dict[str, str],
        endpoints: Mapping[str, tuple[str, Responder]],
        stats: Callable[[str], Any] | None = None,
    ) -> Callable[[], Awaitable[None]]:
        """Register as a NATS micro service: ``endpoints`` maps a name to subject and responder.

        ``stats`` gives the data that ``nats service stats`` shows for an endpoint. Returns what ends it.
        """

    async def open_records(self, seconds: float, limit: int, stream: StreamSpec = INVOCATIONS) -> None:
        """Create or verify ``stream`` (``limit`` bytes, kept for ``seconds``); fail loudly."""

    def publish_record(self, subject: str, data: bytes, id: str) -> None:
        """Store one record without waiting; ``id`` makes a repeat harmless.

        What no stream acknowledges is sent a few times again, and then counted by ``records_lost``.
        """

    @property
    def records_lost(self) -> int:
        """Records that were given up because no stream took them."""

    async def read_records(self, subject: str, stream: StreamSpec = INVOCATIONS) -> list[Delivery]:
        """All stored records on ``subject``, oldest first."""

    async def append_record(self, stream: StreamSpec, subject: str, data: bytes, id: str, after: int) -> int:
        """Have ``stream`` store a record right behind number ``after``, the last on ``subject``; 0: there is none.

        Returns its number. ``id`` makes a repeat harmless. Raises ``Conflict`` when somebody else has written, and
        ``BusUnavailable`` when no stream says that it has it.
        """

    async def read_subject(self, stream: StreamSpec, subject: str, after: int = 0) -> list[Stored]:
        """All that ``stream`` has on ``subject`` behind number ``after``, oldest first."""

    async def list_streams(self) -> list[StreamState]:
        """All streams and how far their consumers are. Raises ``BusUnavailable``."""

    async def read_latest(self, stream: StreamSpec, count: int, below: int = 0) -> list[Stored]:
        """At most ``count`` messages: the last of ``stream``, or the last before number ``below``; oldest first.

        Empty only where there are none. Removed messages may make it fewer than there are.
        """

    async def purge_subject(self, stream: StreamSpec, subject: str) -> int:
        """Remove what ``stream`` has on ``subject``; returns how many messages there were."""

    async def drain(self) -> None:
        """Stop taking, finish what was taken, close."""
