"""Realtime sessions of one gateway: who may open one, how long it lasts, and how it ends."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import NamedTuple

from uvicorn.protocols.utils import ClientDisconnected

from omnibus.errors import Fatal, GatewayStopping, OmnibusError, Overloaded, TooSlow
from omnibus.metrics import GATEWAY
from omnibus.service import until_cancelled
from omnibus.settings import GatewaySettings
from services.gateway.apps.chat import AppChats
from services.gateway.http import websocket
from services.gateway.http.websocket import WebSocketConnection
from services.gateway.openai.realtime.session import SessionConfig, SessionUpdate
from services.gateway.realtime.config import ModelAbilities, apply_update, default_config
from services.gateway.realtime.errors import IDLE_TIMEOUT, SESSION_EXPIRED, EventRefused
from services.gateway.realtime.event_sender import EventSender
from services.gateway.realtime.response_events import Event
from services.gateway.realtime.session import RealtimeSession, SessionContext
from services.gateway.tasks.chat import Chat
from services.gateway.tenancy.body_budget import current_upload
from services.gateway.tenancy.rate_limits import RateLimits
from services.gateway.tenancy.tenant import current_tenant

log = logging.getLogger(__name__)

#: Seconds that a client may take to read what it is sent.
STALLED_SECONDS = 30.0
#: Events that a client may send in a second; more wait.
MAX_EVENTS_PER_SECOND = 1000


class SessionEnd(NamedTuple):
    """The end of a session for its client: an error event, if there is one, and how the connection is closed."""

    code: int
    reason: str
    error: OmnibusError | None = None


class Realtime:
    """Opens sessions with models that ``chat`` answers for, and with those of apps once there are any."""

    def __init__(self, settings: GatewaySettings, chat: Chat) -> None:
        self._settings = settings
        self._chat = chat
        self.chats: Chat | AppChats = chat
        self._open: dict[str, int] = {}
        self._stopping = asyncio.Event()
        self._closed = asyncio.Event()
        GATEWAY.realtime_open.set_value(lambda: self.count)

    @property
    def count(self) -> int:
        """Sessions that are open."""
        return sum(self._open.values())

    def begin_config(self, model: str, update: SessionUpdate | None) -> tuple[SessionConfig, ModelAbilities]:
        """The configuration of a new session with ``model``. Raises ``NotFound``, and ``BadRequest``."""
        abilities = self._find_abilities(model)
        config = default_config(model, abilities)
        if update is not None:
            config = apply_update(config, update, abilities, has_spoken=False)
        return config, abilities

    def _find_abilities(self, model: str) -> ModelAbilities:
        if isinstance(self.chats, AppChats) and self.chats.is_served_by_app(model):
            return ModelAbilities()
        found = self._chat.find_model(model)
        return ModelAbilities(found.has_talker, "audio" in found.encoders, found.voices)

    @contextmanager
    def admit(self) -> Iterator[None]:
        """A place for one more session of the current tenant. Raises ``Overloaded`` and ``GatewayStopping``."""
        tenant, limit = current_tenant(), self._settings.realtime_sessions
        if self._stopping.is_set():
            raise GatewayStopping("this gateway is stopping: connect again, another gateway will take the session")
        share = limit if tenant.key is None else max(1, int(limit * self._settings.tenant_share))
        if self.count >= limit or self._open.get(tenant.name, 0) >= share:
            GATEWAY.rejection_counter("", "sessions").inc()
            raise Overloaded("as many realtime sessions are open as there may be: try again later", reason="sessions")
        self._open[tenant.name] = self._open.get(tenant.name, 0) + 1
        try:
            yield
        finally:
            self._open[tenant.name] -= 1
            if not self._open[tenant.name]:
                del self._open[tenant.name]
            self._closed.set()

    async def serve(
        self,
        connection: WebSocketConnection,
        config: SessionConfig,
        abilities: ModelAbilities,
        limits: RateLimits | None,
    ) -> None:
        """Have a session with the client of an accepted connection, until either of them ends it."""
        expires = time.time() + self._settings.realtime_seconds
        outbox = EventSender(connection.send_text, STALLED_SECONDS)
        upload = _HeldBytes()
        context = SessionContext(
            self._chat,
            self.chats,
            abilities,
            int(expires),
            upload.count_bytes,
            _response_limit(limits),
            _rate_limit_events(limits),
        )
        session = RealtimeSession(context, config, outbox)
        session.begin()
        end: SessionEnd | None = SessionEnd(websocket.SERVER_ERROR, "internal error")
        try:
            end = await self._converse(connection, session, outbox)
        finally:
            await session.close()
            if end is not None:
                await self._say_goodbye(connection, session, outbox, end)

    async def _converse(
        self, connection: WebSocketConnection, session: RealtimeSession, outbox: EventSender
    ) -> SessionEnd | None:
        """Answer events until the session ends; returns how, None where the client has left."""
        loop = asyncio.get_running_loop()
        reading = loop.create_task(self._read_events(connection, session))
        sending = loop.create_task(_send_events(outbox))
        draining = loop.create_task(self._wait_drained(session))
        tasks = {reading, sending, draining}
        try:
            done, _ = await asyncio.wait(
                tasks, timeout=self._settings.realtime_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                error = EventRefused("The session has lasted as long as it may: open another one.", SESSION_EXPIRED)
                return SessionEnd(websocket.GOING_AWAY, "session expired", error)
            return next(iter(done)).result()
        finally:
            for task in tasks:
                await until_cancelled(task)

    async def _read_events(self, connection: WebSocketConnection, session: RealtimeSession) -> SessionEnd | None:
        idle, pace = self._settings.realtime_idle, _EventPace()
        while True:
            try:
                async with asyncio.timeout(idle):
                    text = await connection.receive_text()
            except TimeoutError:
                if session.is_responding:
                    continue
                error = EventRefused(f"The client has sent nothing for {idle:g} s.", IDLE_TIMEOUT)
                return SessionEnd(websocket.NORMAL, "idle", error)
            except OmnibusError as error:
                session.post_error(error)
                continue
            if text is None:
                return None
            try:
                await session.handle_text(text)
            except TooSlow as error:
                return SessionEnd(websocket.POLICY, error.message)
            except Exception:
                log.exception("%s failed", session.id)
                session.post_error(Fatal("internal error: the gateway's log has more under the id of this session"))
            await pace.wait()

    async def _say_goodbye(
        self, connection: WebSocketConnection, session: RealtimeSession, outbox: EventSender, end: SessionEnd
    ) -> None:
        """Send what waits, why the session ends, and close the connection."""
        if end.error is not None:
            session.post_error(end.error)
        try:
            async with asyncio.timeout(websocket.CLOSE_SECONDS):
                await outbox.flush_texts()
        except (ClientDisconnected, TimeoutError, OmnibusError):
            pass
        await connection.close(end.code, end.reason)

    # The stop

    def begin_stop(self) -> None:
        """Open no more sessions, and end each one that is not responding, for its client to go elsewhere."""
        self._stopping.set()

    async def wait_closed(self, seconds: float) -> None:
        """Wait until no session is open, at most ``seconds``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.count:
                    self._closed.clear()
                    await self._closed.wait()

    async def _wait_drained(self, session: RealtimeSession) -> SessionEnd:
        await self._stopping.wait()
        await session.wait_responses()
        return SessionEnd(websocket.RESTART, "the gateway is stopping")


async def _send_events(outbox: EventSender) -> SessionEnd | None:
    try:
        await outbox.send_texts()
    except ClientDisconnected:
        pass
    except TooSlow as error:
        return SessionEnd(websocket.POLICY, error.message)
    return None


class _HeldBytes:
    """Bytes that a session holds, counted with the bodies of requests."""

    def __init__(self) -> None:
        self._upload = current_upload()
        self._held = 0

    def count_bytes(self, more: int) -> None:
        """Raises ``Overloaded``."""
        self._upload.count_bytes(self._held, self._held + more)
        self._held += more


class _EventPace:
    """Lets other clients go on between two events, and makes one wait that sends too many."""

    def __init__(self) -> None:
        self._count = 0
        self._begin = time.monotonic()

    async def wait(self) -> None:
        """One event was handled."""
        self._count += 1
        now = time.monotonic()
        if now - self._begin >= 1.0:
            self._count, self._begin = 0, now
        over = self._count >= MAX_EVENTS_PER_SECOND
        await asyncio.sleep(max(0.0, self._begin + 1.0 - now) if over else 0)


def _response_limit(limits: RateLimits | None) -> Callable[[], AbstractContextManager[None]]:
    key = current_tenant().key
    if limits is None or key is None:
        return nullcontext
    return lambda: limits.limit_request(key)


def _rate_limit_events(limits: RateLimits | None) -> Callable[[], list[Event]]:
    """Limits of the client's key as events have them; none where it has no limit on requests."""
    key = current_tenant().key

    def describe() -> list[Event]:
        if limits is None or key is None or not key.rate:
            return []
        most, left, seconds = limits.rate_state(key)
        return [{"name": "requests", "limit": most, "remaining": left, "reset_seconds": seconds}]

    return describe
