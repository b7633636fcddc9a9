"""The bus in one process: the contract of ``omnibus.bus`` without a server."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from itertools import count
from typing import Any

from omnibus.bus import Delivery, Handler, Responder, Stored, StreamState, body_room, request_reply
from omnibus.bus.subjects import INVOCATIONS, StreamSpec
from omnibus.errors import BusUnavailable, Conflict, TooLarge
from omnibus.settings import BusSettings

log = logging.getLogger(__name__)


def subject_matches(pattern: str, subject: str) -> bool:
    """Return whether ``subject`` matches by NATS rules: ``*`` is one token, ``>`` one or more."""
    pattern_parts, subject_parts = pattern.split("."), subject.split(".")
    for position, part in enumerate(pattern_parts):
        if part == ">":
            return len(subject_parts) > position
        if position >= len(subject_parts) or part not in ("*", subject_parts[position]):
            return False
    return len(pattern_parts) == len(subject_parts)


class MemoryBus:
    """Bus in one process.

    As with a real connection, it delivers messages in order, in a later turn of the event loop.
    """

    reconnects = 0
    clustered = False

    records_lost = 0

    def __init__(self, settings: BusSettings | None = None) -> None:
        self.connected = True
        self._settings = settings or BusSettings()
        self._subscribers: list[tuple[str, str, Handler]] = []
        self._turn = count()
        self._inbox = count()
        self._streams: dict[str, StreamSpec] = {INVOCATIONS.name: INVOCATIONS}
        self._records: dict[str, tuple[StreamSpec, Stored]] = {}  # by their ids
        self._numbers: dict[str, int] = {}  # of the last message of each stream
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def max_body(self) -> int:
        return body_room(self._settings.max_payload)

    def publish(
        self,
        subject: str,
        data: bytes,
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
        lazy: bool = False,
    ) -> None:
        if not self.connected:
            raise BusUnavailable(f"cannot publish to {subject}: the bus is closed")
        size = len(data) + sum(len(f"{key}: {value}\r\n".encode()) for key, value in (headers or {}).items())
        if size > self._settings.max_payload:
            raise TooLarge(f"{size} bytes for {subject} are over the bus limit of {self._settings.max_payload}")
        asyncio.get_running_loop().call_soon(self._deliver_message, Delivery(subject, data, reply, headers))

    def call_before_flush(self, publish: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(publish)

    def flush_soon(self) -> None: ...

    def _deliver_message(self, delivery: Delivery) -> None:
        plain: list[Handler] = []
        groups: dict[tuple[str, str], list[Handler]] = {}
        for pattern, queue, handler in self._subscribers:
            if subject_matches(pattern, delivery.subject):
                groups.setdefault((pattern, queue), []).append(handler) if queue else plain.append(handler)
        handlers = plain + [members[next(self._turn) % len(members)] for members in groups.values()]
        for handler in handlers:
            try:
                handler(delivery)
            except Exception:  # as with a real connection, other handlers still get the message
                log.exception("handler of %s failed", delivery.subject)
        if not handlers and delivery.reply:
            self._deliver_message(Delivery(delivery.reply, b"", refused=True))

    async def subscribe(self, subject: str, handler: Handler, queue: str = "") -> Callable[[], Awaitable[None]]:
        entry = (subject, queue, handler)
        self._subscribers.append(entry)

        async def unsubscribe() -> None:
            self._subscribers.remove(entry)

        return unsubscribe

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        async for part in self.request_stream(subject, data, timeout):
            return part
        return b""

    async def request_stream(
        self, subject: str, data: bytes, timeout: float, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[bytes]:
        async for part in request_reply.request_replies(
            self, f"_INBOX.{next(self._inbox)}", subject, data, timeout, headers
        ):
            yield part

    async def add_responder(self, subject: str, responder: Responder, queue: str = "") -> Callable[[], Awaitable[None]]:
        def on_request(delivery: Delivery) -> None:
            task = asyncio.get_running_loop().create_task(request_reply.send_replies(self, responder, delivery))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return await self.subscribe(subject, on_request, queue)

    async def register_service(
        self,
        name: str,
        metadata: dict[str, str],
        endpoints: Mapping[str, tuple[str, Responder]],
        stats: Callable[[str], Any] | None = None,
    ) -> Callable[[], Awaitable[None]]:
        ends = [await self.add_responder(subject, responder, queue="q") for subject, responder in endpoints.values()]

        async def stop_service() -> None:
            for end in ends:
                await end()

        return stop_service

    async def open_records(self, seconds: float, limit: int, stream: StreamSpec = INVOCATIONS) -> None:
        self._streams[stream.name] = stream

    def publish_record(self, subject: str, data: bytes, id: str) -> None:
        try:
            self.publish(subject, data)
        except (BusUnavailable, TooLarge):
            self.records_lost += 1
            raise
        keeps = next((each for each in self._streams.values() if subject_matches(each.subjects, subject)), None)
        if keeps is None:
            self.records_lost += 1
        elif id not in self._records:
            self._numbers[keeps.name] = number = self._numbers.get(keeps.name, 0) + 1
            self._records[id] = (keeps, Stored(number, subject, data))

    async def append_record(self, stream: StreamSpec, subject: str, data: bytes, id: str, after: int) -> int:
        if stream.name not in self._streams or not subject_matches(stream.subjects, subject):
            raise BusUnavailable(f"no stream has taken {subject}")
        if id in self._records:
            return self._records[id][1].number
        last = max(
            (message.number for message in self._stored_messages(stream) if message.subject == subject), default=0
        )
        if last != after:
            raise Conflict(f"another client has written to {subject}")
        self.publish_record(subject, data, id)
        return self._records[id][1].number

    async def read_subject(self, stream: StreamSpec, subject: str, after: int = 0) -> list[Stored]:
        messages = self._stored_messages(stream)
        return [each for each in messages if subject_matches(subject, each.subject) and each.number > after]

    async def read_records(self, subject: str, stream: StreamSpec = INVOCATIONS) -> list[Delivery]:
        return [
            Delivery(message.subject, message.data)
            for message in self._stored_messages(stream)
            if subject_matches(subject, message.subject)
        ]

    async def read_latest(self, stream: StreamSpec, count: int, below: int = 0) -> list[Stored]:
        return [message for message in self._stored_messages(stream) if message.number < (below or math.inf)][-count:]

    async def purge_subject(self, stream: StreamSpec, subject: str) -> int:
        purged_ids = [
            id
            for id, (keeps, message) in self._records.items()
            if keeps == stream and subject_matches(subject, message.subject)
        ]
        for id in purged_ids:
            del self._records[id]
        return len(purged_ids)

    def _stored_messages(self, stream: StreamSpec) -> list[Stored]:
        return [message for keeps, message in self._records.values() if keeps == stream]

    async def list_streams(self) -> list[StreamState]:
        return []

    async def drain(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        self._subscribers.clear()
        self.connected = False
