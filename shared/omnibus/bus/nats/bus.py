"""Bus on a connection to NATS: messages, micro services, and streams of JetStream."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import nats.errors
import nats.js.errors
import nats.micro
from nats.aio.msg import Msg
from nats.js.api import RawStreamMsg
from nats.micro.request import Request
from nats.micro.service import EndpointConfig

from omnibus.bus import Delivery, Handler, Responder, Stored, StreamState, body_room, request_reply
from omnibus.bus.nats.acks import RecordAcks
from omnibus.bus.nats.connection import (
    MAX_PENDING_BYTES,
    NatsConnection,
    encode_headers,
    encode_publish,
    open_connection,
)
from omnibus.bus.nats.streams import StreamKeeper
from omnibus.bus.subjects import INVOCATIONS, StreamSpec
from omnibus.concurrency import finish_within, keep_cancellation
from omnibus.errors import BusUnavailable, Conflict, DeadlineExceeded, NotFound, TooLarge
from omnibus.settings import BusSettings

log = logging.getLogger(__name__)

#: Most bytes of one read of a stream, and its timeout in seconds.
MAX_BATCH_BYTES = 16 << 20
READ_TIMEOUT_SECONDS = 10.0
_MAX_BATCH = 1000
#: Timeout of one attempt to append a record, of all attempts, and the pause between them, in seconds.
APPEND_TRY_SECONDS, APPEND_TIMEOUT_SECONDS, _APPEND_PAUSE_SECONDS = 2.0, 10.0, 0.1
#: Longest time for closing the connection.
_DRAIN_SECONDS = 5.0
#: JetStream's code for a record that is not the next one of its subject.
_WRONG_LAST_SEQUENCE_CODE = 10071


class _Batch(NamedTuple):
    """Messages of a stream, and the server's count of those that follow."""

    found: list[Stored]
    pending: int


class NatsBus:
    """A connection to NATS; ``await NatsBus.connect(settings, name)``."""

    def __init__(self, connection: NatsConnection, settings: BusSettings) -> None:
        self._nc = connection
        self._js = connection.jetstream(timeout=5)
        self._settings = settings
        self._tasks: set[asyncio.Task[None]] = set()
        self._acks: RecordAcks | None = None  # once there is a stream
        self._streams = StreamKeeper(self._js, settings.replicas, lambda: self.clustered)
        connection.on_reconnect = self._on_reconnect

    @classmethod
    async def connect(cls, settings: BusSettings, name: str) -> "NatsBus":
        """Connect within ``settings.connect_timeout``; raises ``BusUnavailable`` with the URL."""
        return cls(await open_connection(settings, name), settings)

    @property
    def connected(self) -> bool:
        return self._nc.is_connected

    @property
    def reconnects(self) -> int:
        return self._nc.stats["reconnects"]

    @property
    def clustered(self) -> bool:
        return self._nc.is_clustered

    @property
    def max_body(self) -> int:
        return body_room(min(self._settings.max_payload, self._nc.max_payload))

    def publish(
        self,
        subject: str,
        data: bytes,
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
        lazy: bool = False,
    ) -> None:
        nc = self._nc
        head = encode_headers(headers)
        self._check_size(subject, len(head) + len(data), self._settings.max_payload)
        if not nc.takes_commands:
            raise BusUnavailable(f"cannot publish to {subject}: the connection to NATS is closed")
        if nc.pending_data_size + len(data) > MAX_PENDING_BYTES:
            raise BusUnavailable(f"the connection to NATS has {nc.pending_data_size} bytes waiting: try again")
        nc.send_command(encode_publish(subject, data, reply, head), lazy)

    def _check_size(self, subject: str, size: int, limit: int) -> None:
        """Raise ``TooLarge`` for a message over ``limit`` or the server's limit.

        It would end the connection. The server counts headers and data together; nats-py compares only the data.
        """
        limit = min(limit, self._nc.max_payload)
        if size > limit:
            raise TooLarge(
                f"{size} bytes for {subject} are over the bus limit of {limit}: larger inputs travel by handle"
            )

    def call_before_flush(self, publish: Callable[[], None]) -> None:
        self._nc.call_before_flush(publish)

    def flush_soon(self) -> None:
        self._nc.flush_soon()

    async def subscribe(self, subject: str, handler: Handler, queue: str = "") -> Callable[[], Awaitable[None]]:
        unsubscribe = await self._send_subscription(subject, handler, queue)
        await self._flush_connection(5)
        return unsubscribe

    async def _send_subscription(
        self, subject: str, handler: Handler, queue: str = ""
    ) -> Callable[[], Awaitable[None]]:
        """Subscribe without waiting: the server reads this connection's commands in order."""

        async def ignore_message(_: Msg) -> None: ...

        subscription = await self._nc.subscribe(subject, queue, cb=ignore_message)
        self._nc.handlers[subscription._id] = handler

        async def unsubscribe() -> None:
            with suppress(nats.errors.Error):  # a closed connection delivers nothing
                await subscription.unsubscribe()
            self._nc.handlers.pop(subscription._id, None)

        return unsubscribe

    async def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        self._check_size(subject, len(data), self._settings.max_payload)
        try:
            return (await self._nc.request(subject, data, timeout=timeout)).data
        except nats.errors.NoRespondersError as error:
            raise NotFound(f"no subscriber on {subject}") from error
        except (nats.errors.TimeoutError, TimeoutError) as error:
            raise DeadlineExceeded(f"no answer on {subject} within {timeout:g} s") from error

    async def request_stream(
        self, subject: str, data: bytes, timeout: float, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[bytes]:
        async for part in request_reply.request_replies(self, self._nc.new_inbox(), subject, data, timeout, headers):
            yield part

    async def add_responder(self, subject: str, responder: Responder, queue: str = "") -> Callable[[], Awaitable[None]]:
        return await self.subscribe(
            subject, lambda delivery: self._spawn_task(request_reply.send_replies(self, responder, delivery)), queue
        )

    def _spawn_task(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._discard_task)

    def _discard_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception():
            log.error("a responder failed", exc_info=task.exception())

    async def register_service(
        self,
        name: str,
        metadata: dict[str, str],
        endpoints: Mapping[str, tuple[str, Responder]],
        stats: Callable[[str], Any] | None = None,
    ) -> Callable[[], Awaitable[None]]:
        service = await nats.micro.add_service(
            self._nc,
            name=name,
            version="1.0.0",
            description="Omnibus",
            metadata=metadata,
            stats_handler=None if stats is None else lambda endpoint: stats(endpoint.name),
        )

        def endpoint_handler(responder: Responder) -> Callable[[Request], Awaitable[None]]:
            async def handle_request(request: Request) -> None:
                delivery = Delivery(request.subject, request.data, request._msg.reply, request._msg.headers)
                self._spawn_task(request_reply.send_replies(self, responder, delivery))

            return handle_request

        for key, (subject, responder) in endpoints.items():
            await service.add_endpoint(
                EndpointConfig(name=key, subject=subject, handler=endpoint_handler(responder), metadata={})
            )
        await self._flush_connection(5)

        async def stop_service() -> None:
            with suppress(nats.errors.Error):  # a closed connection serves nothing
                await service.stop()

        return stop_service

    async def _flush_connection(self, seconds: int) -> None:
        """Wait until the server has read everything so far. Raises ``BusUnavailable``.

        nats-py's own ``flush`` alone lets its ping overtake data that still waits for the socket.
        """
        try:
            await keep_cancellation(self._nc._flush_pending(force_flush=True))
            await keep_cancellation(self._nc.flush(timeout=seconds))
        except (TimeoutError, nats.errors.Error) as error:
            raise BusUnavailable(f"NATS did not answer a ping within {seconds} s: {error}") from error

    async def open_records(self, seconds: float, limit: int, stream: StreamSpec = INVOCATIONS) -> None:
        if self._acks is None:
            acks = RecordAcks(self._publish_for_ack, self._nc.new_inbox(), self.clustered)
            await self.subscribe(acks.pattern, acks.handle_ack)
            self._acks = acks
        await self._streams.open_stream(stream, seconds, limit, self._settings.connect_timeout)

    def _on_reconnect(self) -> None:
        self._spawn_task(self._streams.verify_streams())

    @property
    def records_lost(self) -> int:
        return self._acks.lost if self._acks is not None else 0

    def publish_record(self, subject: str, data: bytes, id: str) -> None:
        if self._acks is None:
            self.publish(subject, data, headers={"Nats-Msg-Id": id})
        else:
            self._acks.send(subject, data, id)

    async def store_record(self, subject: str, data: bytes, id: str) -> None:
        """Publish a record and wait until its stream has it. Raises ``BusUnavailable`` and ``TooLarge``."""
        headers = {"Nats-Msg-Id": id}
        self._check_size(subject, len(encode_headers(headers)) + len(data), self._nc.max_payload)
        try:
            await self._js.publish(subject, data, headers=headers)
        except (nats.errors.Error, TimeoutError) as error:
            raise BusUnavailable(f"{subject} was not kept: {error or 'timed out'}") from error

    def _publish_for_ack(self, subject: str, data: bytes, reply: str, headers: dict[str, str]) -> None:
        self.publish(subject, data, reply=reply, headers=headers)

    async def read_records(self, subject: str, stream: StreamSpec = INVOCATIONS) -> list[Delivery]:
        deliveries: list[Delivery] = []
        sequence = 1
        while (message := await self._read_message(stream, subject, sequence)) is not None:
            deliveries.append(Delivery(message.subject or subject, message.data or b""))
            sequence = (message.seq or 0) + 1
        return deliveries

    async def _read_message(self, stream: StreamSpec, subject: str, sequence: int) -> RawStreamMsg | None:
        """The first message on ``subject`` from ``sequence`` on. A server under load is asked again."""
        give_up = time.monotonic() + READ_TIMEOUT_SECONDS
        while True:
            try:
                return await self._js.get_msg(stream.name, seq=sequence, subject=subject, next=True)
            except nats.js.errors.NotFoundError:
                return None
            except TimeoutError as error:
                if time.monotonic() > give_up:
                    within = f"within {READ_TIMEOUT_SECONDS:g} s"
                    raise BusUnavailable(f"{subject} was not read {within}: try again") from error
            except nats.errors.Error as error:
                raise BusUnavailable(f"cannot read {subject}: {error}") from error

    async def append_record(self, stream: StreamSpec, subject: str, data: bytes, id: str, after: int) -> int:
        headers = {"Nats-Msg-Id": id, "Nats-Expected-Last-Subject-Sequence": str(after)}
        self._check_size(subject, len(encode_headers(headers)) + len(data), self._nc.max_payload)
        give_up = time.monotonic() + APPEND_TIMEOUT_SECONDS
        while True:
            try:
                ack = await self._js.publish(subject, data, timeout=APPEND_TRY_SECONDS, headers=headers)
            except nats.js.errors.APIError as error:
                if error.err_code == _WRONG_LAST_SEQUENCE_CODE:
                    return await self._find_own_record(stream, subject, id, error)
                failure: Exception = error
            except (nats.errors.Error, TimeoutError) as error:
                failure = error
            else:
                return ack.seq
            if time.monotonic() > give_up:
                raise BusUnavailable(f"no stream has taken {subject}: {failure or 'no answer'}") from failure
            await asyncio.sleep(_APPEND_PAUSE_SECONDS)

    async def _find_own_record(self, stream: StreamSpec, subject: str, id: str, refusal: Exception) -> int:
        """Return the number of the last record if it has ``id``.

        Its acknowledgement was lost: the server compares numbers before it detects a repeat. Raises ``Conflict`` for
        another record.
        """
        try:
            last = await self._js.get_last_msg(stream.name, subject)
        except (nats.errors.Error, TimeoutError) as error:
            raise BusUnavailable(f"cannot read {subject}: {error or 'no answer'}") from error
        if (last.headers or {}).get("Nats-Msg-Id") != id or last.seq is None:
            raise Conflict(f"another client has written to {subject}") from refusal
        return last.seq

    async def read_subject(self, stream: StreamSpec, subject: str, after: int = 0) -> list[Stored]:
        messages: list[Stored] = []
        while True:
            begin = (messages[-1].number if messages else after) + 1
            query = {"seq": begin, "batch": _MAX_BATCH, "max_bytes": MAX_BATCH_BYTES, "next_by_subj": subject}
            batch = await self._fetch_batch(stream, query)
            messages += batch.found
            if not batch.found or not batch.pending:
                return messages

    async def list_streams(self) -> list[StreamState]:
        try:
            return [await self._stream_state(info) for info in await self._js.streams_info()]
        except (nats.errors.Error, TimeoutError) as error:
            raise BusUnavailable(f"cannot read the state of the streams: {error or 'timed out'}") from error

    async def _stream_state(self, info: nats.js.api.StreamInfo) -> StreamState:
        name, state = str(info.config.name), info.state
        infos = await self._js.consumers_info(name) if state.consumer_count else []
        durable = {each.name: each for each in infos if each.config.durable_name}  # others have generated names
        consumers = {key: (each.num_pending or 0, each.num_ack_pending or 0) for key, each in durable.items()}
        return StreamState(name, state.messages, state.bytes, info.config.max_bytes or -1, state.last_seq, consumers)

    async def read_latest(self, stream: StreamSpec, count: int, below: int = 0) -> list[Stored]:
        try:
            state = (await self._js.stream_info(stream.name)).state
        except nats.js.errors.NotFoundError:
            return []
        except (nats.errors.Error, TimeoutError) as error:
            raise BusUnavailable(f"cannot read {stream.name}: {error}") from error
        end = min(below or state.last_seq + 1, state.last_seq + 1)
        stored_messages: list[Stored] = []
        while state.messages and end > state.first_seq and not stored_messages:  # otherwise all between were removed
            begin = max(end - count, state.first_seq)
            query = {"seq": begin, "batch": end - begin, "max_bytes": MAX_BATCH_BYTES, "next_by_subj": stream.subjects}
            stored_messages = [
                message for message in (await self._fetch_batch(stream, query)).found if message.number < end
            ]
            end = begin
        return stored_messages

    async def _fetch_batch(self, stream: StreamSpec, query: dict[str, Any]) -> _Batch:
        """Get many messages directly, which nats-py does not support."""
        deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
        reply, messages = self._nc.new_inbox(), list[Stored]()
        stop = await self._send_subscription(reply, deliveries.put_nowait)
        try:
            self.publish(f"$JS.API.DIRECT.GET.{stream.name}", json.dumps(query).encode(), reply=reply)
            async with asyncio.timeout(READ_TIMEOUT_SECONDS):
                while (headers := (delivery := await deliveries.get()).headers) and "Nats-Sequence" in headers:
                    messages.append(Stored(int(headers["Nats-Sequence"]), headers["Nats-Subject"], delivery.data))
                return _Batch(messages, int((headers or {}).get("Nats-Num-Pending", len(messages))))
        except TimeoutError as error:
            raise BusUnavailable(f"{stream.name} was not read within {READ_TIMEOUT_SECONDS:g} s: try again") from error
        finally:
            await stop()

    async def purge_subject(self, stream: StreamSpec, subject: str) -> int:
        try:
            before = (await self._js.stream_info(stream.name, subjects_filter=subject)).state.subjects or {}
            await self._js.purge_stream(stream.name, subject=subject)
        except nats.js.errors.NotFoundError:
            return 0
        except (nats.errors.Error, TimeoutError) as error:
            raise BusUnavailable(f"cannot remove {subject}: {error}") from error
        return sum(before.values())

    async def drain(self) -> None:
        if self._nc.is_closed:
            return
        try:
            await finish_within(_DRAIN_SECONDS, self._flush_and_close())
        except (TimeoutError, OSError, RuntimeError, nats.errors.Error, BusUnavailable):
            # uvloop raises RuntimeError for a write to a connection that has ended.
            log.warning("NATS did not take the last messages before closing")

    async def _flush_and_close(self) -> None:
        await self._flush_connection(2)
        if self._acks is not None:
            await self._acks.wait_for_acks()
        await self._nc.close()
