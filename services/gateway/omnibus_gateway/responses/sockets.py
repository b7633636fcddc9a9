"""WebSockets of ``/v1/responses`` at one gateway: their number, lifetime and end.

A WebSocket for responses, with lanes of requests. Lanes run concurrently, the requests of a lane in order.

The connection remembers the last response of each lane if it is not stored. The next request of the connection can
refer to it in ``previous_response_id``.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import NamedTuple

import msgspec
from uvicorn.protocols.utils import ClientDisconnected

from omnibus.errors import BadRequest, OmnibusError, Overloaded, TooSlow
from omnibus.metrics import GATEWAY
from omnibus.service import until_cancelled
from omnibus.settings import GatewaySettings
from omnibus_gateway.http.exchange import GOING_AWAY, NORMAL, POLICY, RESTART, SERVER_ERROR, WebSocketConnection
from omnibus_gateway.openai.errors import client_error
from omnibus_gateway.openai.responses.events import AnswerEvents, ending_event
from omnibus_gateway.openai.responses.items import InputItem
from omnibus_gateway.openai.responses.response import (
    InputTokensDetails,
    OutputTokensDetails,
    ResponseObject,
    ResponseUsage,
)
from omnibus_gateway.openai.responses.sequence import (
    CreateEvent,
    EventSequence,
    NumberedEvent,
    SteerEvent,
    encode_error,
    encode_event,
    encode_steer_failure,
    parse_socket_event,
    read_stream_id,
)
from omnibus_gateway.openai.responses.to_chat import output_as_input
from omnibus_gateway.responses.conversations import EarlierItems, resolve_references
from omnibus_gateway.responses.service import Responses
from omnibus_gateway.tenancy.body_budget import Upload, current_upload
from omnibus_gateway.tenancy.rate_limits import RateLimits
from omnibus_gateway.tenancy.tenant import OpenSockets, response_limit, revoked_error, wait_revoked

#: Limits: lanes of one connection, and requests that wait in one lane.
MAX_LANES, MAX_WAITING = 16, 16
#: Seconds that a client may take to read a message.
STALLED_SECONDS = 30.0


class ClientStalled(TooSlow):
    """The client does not read its messages."""


class _LastResponse(NamedTuple):
    """A response that is not stored, with its complete history. ``nbytes`` is the size of both."""

    items: list[InputItem]
    nbytes: int


class ResponseConnection:
    """Handles the events of one client with ``responses``; ``limit`` applies to each response."""

    def __init__(
        self,
        connection: WebSocketConnection,
        responses: Responses,
        limit: Callable[[], AbstractContextManager[None]],
        upload: Upload,
    ) -> None:
        self._connection = connection
        self._responses = responses
        self._limit = limit
        self._upload = upload
        self._held = 0
        self._lanes: dict[str, _Lane] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_busy(self) -> bool:
        """True if a response is in progress or waits for its turn."""
        return not self._idle.is_set()

    async def wait_idle(self) -> None:
        """Wait until no response is in progress."""
        await self._idle.wait()

    async def wait_failed(self) -> None:
        """Wait until sending fails. Raises ``ClientStalled`` and ``ClientDisconnected``."""
        await asyncio.shield(self._failed)

    async def handle_text(self, text: str) -> None:
        """Start the request of an event, or send the reason against it."""
        try:
            event = parse_socket_event(text)
            if isinstance(event, SteerEvent):
                await self.send(encode_steer_failure(event))
            else:
                self._open_lane(event.stream_id).add(event, len(text))
        except OmnibusError as error:
            await self.send_error(error, read_stream_id(text))

    async def send(self, text: str) -> None:
        """Send a message once the transport has room. Raises ``ClientStalled`` and ``ClientDisconnected``."""
        try:
            async with asyncio.timeout(STALLED_SECONDS):
                await self._connection.send_text(text)
        except TimeoutError:
            raise ClientStalled("The client does not read its events.") from None

    async def send_error(self, error: OmnibusError, stream_id: str = "", code: str = "") -> None:
        """Send an error about a lane or the whole connection. Raises like ``send``."""
        await self.send(encode_error(error, stream_id, code))

    async def close(self) -> None:
        """Cancel all responses in progress."""
        for lane in self._lanes.values():
            await lane.close()
        if not self._failed.cancel():
            self._failed.exception()  # the error was handled: mark it as retrieved

    # Lanes

    def _open_lane(self, stream_id: str) -> "_Lane":
        lane = self._lanes.get(stream_id)
        if lane is None:
            if len(self._lanes) >= MAX_LANES:
                raise Overloaded(f"a connection must have at most {MAX_LANES} lanes: use an open one")
            lane = self._lanes[stream_id] = _Lane(self, stream_id)
        return lane

    def find_last(self, id: str | None) -> _LastResponse | None:
        """Return the response ``id`` of a lane, if it is not stored."""
        return next((lane.last for lane in self._lanes.values() if lane.last is not None and lane.last_id == id), None)

    def count_bytes(self, more: int) -> None:
        """Count bytes that the connection holds; a negative number releases them. Raises ``Overloaded``."""
        self._upload.count_bytes(self._held, self._held + more)
        self._held += more

    def note_busy(self) -> None:
        """Update the idle state after a lane started or finished its work."""
        if any(lane.is_busy for lane in self._lanes.values()):
            self._idle.clear()
        else:
            self._idle.set()

    def fail(self, error: Exception) -> None:
        """Report that sending failed with ``error``."""
        if not self._failed.done():
            self._failed.set_exception(error)

    # Responses

    def metric_label(self, model: str) -> str:
        """Return the label of ``model`` in metrics."""
        return self._responses.metric_label(model)

    async def make_response(self, create_event: CreateEvent, lane: "_Lane") -> None:
        """Answer one request. Raises ``OmnibusError`` if the client did not receive a last event."""
        response_request, last_response = create_event.wanted, self.find_last(create_event.wanted.previous_response_id)
        if last_response is not None and response_request.is_stored:
            raise BadRequest(
                "A response after one that is not stored cannot be stored: send store false.", param="store"
            )
        before = EarlierItems(last_response.items, "previous_response_id") if last_response is not None else None
        with self._limit():
            if before is None:
                before = await self._responses.load_history(response_request)
            if create_event.generate:
                response = await self._stream_response(create_event, before)
            else:
                response = await self._prepare_response(create_event, before)
        if not response_request.is_stored:
            items = [
                *before.items,
                *resolve_references(response_request.items, before.items),
                *output_as_input(response.output),
            ]
            size = (
                len(create_event.body)
                + len(msgspec.json.encode(response.output))
                + (last_response.nbytes if last_response else 0)
            )
            lane.remember(response.id, _LastResponse(items, size))

    async def _stream_response(self, create_event: CreateEvent, before: EarlierItems) -> ResponseObject:
        production = await self._responses.create(create_event.wanted, create_event.body, "", before=before)
        with production.followed():
            async for events in production.follow():
                await self._send_events(events, create_event.stream_id)
        return production.response

    async def _prepare_response(self, create_event: CreateEvent, before: EarlierItems) -> ResponseObject:
        """Create a response without output, which later requests can refer to."""
        spec = await self._responses.specs.open(create_event.wanted, create_event.body, "", before=before)
        events = AnswerEvents(spec.response)
        begin_events = events.begin()
        usage = ResponseUsage(0, InputTokensDetails(), 0, OutputTokensDetails(), 0)
        response = msgspec.structs.replace(
            events.response, status="completed", usage=usage, completed_at=int(time.time())
        )
        if spec.ended is not None:
            await spec.ended(response)
        await self._send_events(EventSequence().number([*begin_events, ending_event(response)]), create_event.stream_id)
        return response

    async def _send_events(self, events: list[NumberedEvent], stream_id: str) -> None:
        for event in events:
            await self.send(encode_event(event, stream_id))


class _Lane:
    """Requests answered in order, by a task that runs while requests wait."""

    def __init__(self, owner: ResponseConnection, stream_id: str) -> None:
        self.last: _LastResponse | None = None
        self.last_id = ""
        self._owner = owner
        self._stream_id = stream_id
        self._waiting: deque[tuple[CreateEvent, int]] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        return self._task is not None

    def add(self, create_event: CreateEvent, nbytes: int) -> None:
        """Queue a request of ``nbytes`` after those before it. Raises ``Overloaded``."""
        if len(self._waiting) >= MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} requests wait in this lane, which is the limit: wait for a response")
        self._owner.count_bytes(nbytes)
        self._waiting.append((create_event, nbytes))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._answer_all())
            self._owner.note_busy()

    def remember(self, id: str, last: _LastResponse) -> None:
        """Replace the remembered response by ``last``, if there is room."""
        before, self.last = self.last.nbytes if self.last is not None else 0, None
        try:
            self._owner.count_bytes(last.nbytes - before)
        except Overloaded:  # a request that refers to this response will get an error
            self._owner.count_bytes(-before)
            return
        self.last_id, self.last = id, last

    async def close(self) -> None:
        """Cancel the response in progress."""
        self._waiting.clear()
        if self._task is not None:
            await until_cancelled(self._task)

    async def _answer_all(self) -> None:
        try:
            while self._waiting:
                create_event, nbytes = self._waiting.popleft()
                await self._answer(create_event)
                self._owner.count_bytes(-nbytes)
        except (ClientStalled, ClientDisconnected) as error:
            self._owner.fail(error)
        finally:
            self._task = None
            self._owner.note_busy()

    async def _answer(self, create_event: CreateEvent) -> None:
        model, code = self._owner.metric_label(create_event.wanted.model), "ok"
        try:
            await self._owner.make_response(create_event, self)
        except (ClientStalled, ClientDisconnected):
            code = "cancelled"
            raise
        except asyncio.CancelledError:
            code = "cancelled"
            raise
        except Exception as error:  # noqa: BLE001 the client gets it
            api_error = client_error(error, f"response {self._stream_id}".rstrip())
            code = api_error.code
            await self._owner.send_error(api_error, self._stream_id)
        finally:
            GATEWAY.request_counter(model, code).inc()


#: Error codes that end a connection.
_TOO_LONG, _IDLE = "websocket_connection_limit_reached", "websocket_idle_timeout"


class _ConnectionEnd(NamedTuple):
    """The end of a connection, with the error sent before it; code 0 if the client disconnected."""

    code: int = 0
    reason: str = ""
    error: OmnibusError | None = None
    error_code: str = ""


class ResponseSockets(OpenSockets):
    """Serves connections with ``responses``. They have the limits of realtime sessions and a separate count."""

    def __init__(self, settings: GatewaySettings, responses: Responses) -> None:
        super().__init__(settings, "connection", "WebSockets")
        self._responses = responses

    async def serve(self, connection: WebSocketConnection, limits: RateLimits | None) -> None:
        """Serve the client of an accepted connection until either side closes it."""
        client = ResponseConnection(connection, self._responses, response_limit(limits), current_upload())
        end = _ConnectionEnd(SERVER_ERROR, "internal error")
        try:
            end = await self._answer_events(connection, client, limits)
        finally:
            await client.close()
            if end.code:
                if end.error is not None:
                    with suppress(ClientStalled, ClientDisconnected):
                        await client.send_error(end.error, code=end.error_code)
                await connection.close(end.code, end.reason)

    async def _answer_events(
        self, connection: WebSocketConnection, client: ResponseConnection, limits: RateLimits | None
    ) -> _ConnectionEnd:
        """Handle events until the connection ends. Returns its end."""
        loop = asyncio.get_running_loop()
        tasks = {
            loop.create_task(self._read_events(connection, client)),
            loop.create_task(_wait_failed(client)),
            loop.create_task(self._wait_drained(client)),
            loop.create_task(_wait_key_revoked(limits)),
        }
        try:
            done_tasks, _ = await asyncio.wait(
                tasks, timeout=self._settings.realtime_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not done_tasks:
                error = TooSlow("The connection has reached its maximum lifetime: open another one.")
                return _ConnectionEnd(GOING_AWAY, "connection expired", error, _TOO_LONG)
            return next(iter(done_tasks)).result()
        finally:
            for task in tasks:
                await until_cancelled(task)

    async def _read_events(self, connection: WebSocketConnection, client: ResponseConnection) -> _ConnectionEnd:
        idle = self._settings.realtime_idle
        while True:
            try:
                async with asyncio.timeout(idle):
                    text = await connection.receive_text()
            except TimeoutError:
                if client.is_busy:
                    continue
                error = TooSlow(f"The client sent nothing for {idle:g} s: open another connection.")
                return _ConnectionEnd(NORMAL, "idle", error, _IDLE)
            except OmnibusError as error:  # bytes where text is expected
                await client.send_error(error)
                continue
            if text is None:
                return _ConnectionEnd()
            try:
                await client.handle_text(text)
            except (ClientStalled, ClientDisconnected) as error:
                return _end_of(error)
            await asyncio.sleep(0)  # let other tasks run between two events

    async def _wait_drained(self, client: ResponseConnection) -> _ConnectionEnd:
        await self.wait_stop()
        await client.wait_idle()
        return _ConnectionEnd(RESTART, "the gateway is stopping")


async def _wait_key_revoked(limits: RateLimits | None) -> _ConnectionEnd:
    await wait_revoked(limits)
    return _ConnectionEnd(POLICY, "the API key was revoked", revoked_error())


async def _wait_failed(client: ResponseConnection) -> _ConnectionEnd:
    try:
        await client.wait_failed()
    except (ClientStalled, ClientDisconnected) as error:
        return _end_of(error)
    return _ConnectionEnd()


def _end_of(error: Exception) -> _ConnectionEnd:
    return _ConnectionEnd(POLICY, "the client does not read") if isinstance(error, TooSlow) else _ConnectionEnd()
