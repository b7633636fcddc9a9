"""Realtime sessions of one gateway (``/v1/realtime``): opening, resuming, limits, and closing.

Sessions run over WebSockets, and browsers open them with client secrets. One session has limits of its bytes in memory,
its events per second, and the rate of its API key.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected

from omnibus.bus import Bus
from omnibus.errors import BadRequest, Conflict, NotFound, OmnibusError, TooSlow
from omnibus.metrics import GATEWAY
from omnibus.recording.sessions import read_session
from omnibus.service import until_cancelled
from omnibus.settings import GatewaySettings
from omnibus_gateway.auth.access_rules import bearer_token
from omnibus_gateway.http import exchange
from omnibus_gateway.http.exchange import (
    PostRequest,
    PostRoute,
    WebSocketConnection,
    rejecting_send,
    sent_authorization,
)
from omnibus_gateway.http.response import JSON, ResponseWriter, refuse_request
from omnibus_gateway.openai.errors import client_error
from omnibus_gateway.openai.realtime.client_events import read_event_id
from omnibus_gateway.openai.realtime.session import (
    PATH,
    SessionConfig,
    SessionKind,
    SessionUpdate,
    encode_client_secret,
    parse_client_secret_request,
)
from omnibus_gateway.realtime.config import (
    TRANSCRIBES,
    ClientSecrets,
    ModelAbilities,
    ResumeToken,
    apply_update,
    check_update,
    default_config,
    new_session_id,
    parse_event_number,
)
from omnibus_gateway.realtime.conversation import Event
from omnibus_gateway.realtime.event_sender import (
    IDLE_TIMEOUT,
    SESSION_EXPIRED,
    EventRefused,
    EventSender,
    SessionLog,
    claim_log,
)
from omnibus_gateway.realtime.restored import RestoredSession
from omnibus_gateway.realtime.session import RealtimeSession
from omnibus_gateway.realtime.speech_detectors import DetectorFactory, SpeechDetectors
from omnibus_gateway.realtime.transcriber import require_hearing
from omnibus_gateway.realtime.turns import SessionContext
from omnibus_gateway.realtime.unknown_models import choose_subprotocol, is_unknown_model, refuse_model
from omnibus_gateway.tasks.chat import Chat, Chats
from omnibus_gateway.tasks.recognition import RecordingReader
from omnibus_gateway.tenancy.body_budget import current_upload
from omnibus_gateway.tenancy.rate_limits import KEY_LIMITS, RateLimits
from omnibus_gateway.tenancy.tenant import (
    LogBudget,
    OpenSockets,
    current_tenant,
    response_limit,
    revoked_error,
    wait_revoked,
)

#: Maximum events per second of one client; further events wait.
MAX_EVENTS_PER_SECOND = 1000


class HeldBytes:
    """Bytes of one session in memory, counted with the bodies of requests."""

    def __init__(self) -> None:
        self._upload = current_upload()
        self._held = 0

    def count_bytes(self, more: int) -> None:
        """Add ``more`` bytes. Raises ``Overloaded``."""
        self._upload.count_bytes(self._held, self._held + more)
        self._held += more


class EventPace:
    """Yields to other clients after each event, and throttles a fast client."""

    def __init__(self) -> None:
        self._count = 0
        self._begin = time.monotonic()

    async def wait(self) -> None:
        """Count one event, and wait if it is over the limit."""
        self._count += 1
        now = time.monotonic()
        if now - self._begin >= 1.0:
            self._count, self._begin = 0, now
        over = self._count >= MAX_EVENTS_PER_SECOND
        await asyncio.sleep(max(0.0, self._begin + 1.0 - now) if over else 0)


def rate_limit_events(limits: RateLimits | None) -> Callable[[], list[Event]]:
    """Return a function that describes the limits of the current key.

    Its result is empty if the key has no limit on requests.
    """
    key = current_tenant().key

    def describe() -> list[Event]:
        if limits is None or key is None or not key.rate:
            return []
        most, left, seconds = limits.rate_state(key)
        return [{"name": "requests", "limit": most, "remaining": left, "reset_seconds": seconds}]

    return describe


log = logging.getLogger(__name__)

#: Values of ``OMNIBUS_GATEWAY_REALTIME_RESUME``.
RESUME_MODES = ("off", "requested", "always")

#: Seconds that a client may take to read its events.
STALLED_SECONDS = 30.0
#: Codes with which a client closes a session for good.
_FINAL_CLOSES = (exchange.NORMAL, exchange.GOING_AWAY)


class SessionEnd(NamedTuple):
    """End of a connection: an optional error event and the close code, 0 if the client has disconnected.

    ``over`` is the reason why the session has ended for good; if empty, the client may resume it.
    """

    code: int = 0
    reason: str = ""
    error: OmnibusError | None = None
    over: str = ""


class OpenedSession(NamedTuple):
    """Session before its first event here, valid until ``expires`` (Unix seconds).

    A session with a ``log`` can be resumed; ``token`` is set if it is new. The client of a ``restored`` session has
    ``seen`` this many events.
    """

    id: str
    config: SessionConfig
    abilities: ModelAbilities
    expires: float
    log: SessionLog | None = None
    token: ResumeToken | None = None
    restored: RestoredSession | None = None
    seen: int = 0


class Realtime(OpenSockets):
    """Opens sessions with the models of ``chat`` and of apps."""

    def __init__(
        self,
        settings: GatewaySettings,
        chat: Chat,
        recordings: RecordingReader,
        bus: Bus,
        events: LogBudget | None = None,
    ) -> None:
        self._events = events
        if settings.realtime_resume not in RESUME_MODES:
            modes = ", ".join(RESUME_MODES)
            raise BadRequest(f"OMNIBUS_GATEWAY_REALTIME_RESUME={settings.realtime_resume!r}: it must be one of {modes}")
        self._detectors = SpeechDetectors(settings.realtime_detector)
        super().__init__(settings, "session", "realtime sessions")
        self._bus = bus
        self._chat = chat
        self._recordings = recordings
        self.chats: Chats = chat
        GATEWAY.realtime_open.set_value(lambda: self.count)

    def open_session(
        self, model: str, update: SessionUpdate | None, kind: SessionKind, *, resumable: bool
    ) -> OpenedSession:
        """Create a session with ``model``. Raises ``NotFound`` and ``BadRequest``."""
        config, abilities = self.begin_config(model, update, kind)
        expires, mode = time.time() + self._settings.realtime_seconds, self._settings.realtime_resume
        if mode == "off" or not (resumable or mode == "always"):
            return OpenedSession(new_session_id(), config, abilities, expires)
        token = ResumeToken.create()
        log = SessionLog(self._bus, token.id, budget=self._events)
        return OpenedSession(token.id, config, abilities, expires, log, token)

    async def resume_session(self, token: ResumeToken, last_event_id: str) -> OpenedSession:
        """Restore the session of ``token``; its old connection loses it.

        Raises ``NotFound``, also if another tenant owns it, ``BadRequest``, ``Conflict``, ``BusUnavailable`` and
        ``ProtocolError``.
        """
        session_entries = await read_session(self._bus, token.id)
        restored_session, count = RestoredSession(session_entries.entries[0]), len(session_entries.entries)
        _check_opens(token, restored_session)
        await restored_session.apply_entries(session_entries.entries)
        _check_goes_on(restored_session)
        seen_count = parse_event_number(token.id, last_event_id, len(restored_session.events))
        log = await claim_log(self._bus, token.id, session_entries, self._events)
        await restored_session.apply_entries(session_entries.entries[count:])
        _check_goes_on(restored_session)
        config = restored_session.config
        abilities = self._find_abilities(config.model, config.kind)
        GATEWAY.realtime_resumed.labels(restored_session.origin.model).inc()
        return OpenedSession(
            token.id,
            restored_session.config,
            abilities,
            restored_session.origin.expires,
            log,
            None,
            restored_session,
            seen_count,
        )

    def begin_config(
        self, model: str, update: SessionUpdate | None, kind: SessionKind = "realtime"
    ) -> tuple[SessionConfig, ModelAbilities]:
        """Return the configuration of a new session with ``model``. Raises ``NotFound`` and ``BadRequest``."""
        abilities = self._find_abilities(model, kind)
        config = default_config(model, abilities, kind)
        if update is not None:
            config = apply_update(config, update, abilities, has_spoken=False)
        return config, abilities

    def _find_abilities(self, model: str, kind: SessionKind) -> ModelAbilities:
        if kind == "transcription":
            if model:
                require_hearing(self._chat, self.chats, self._recordings, model, "model")
            return TRANSCRIBES
        if self.chats.is_served_by_app(model):
            return ModelAbilities()
        model_plan = self._chat.find_model(model)
        return ModelAbilities(model_plan.has_talker, "audio" in model_plan.encoders, model_plan.voices)

    def _find_detector(self, model: str) -> DetectorFactory:
        router = self._chat.runs.router
        plan = router.plan.models.get(router.base_model(model)) if router.plan is not None else None
        return self._detectors.choose((plan is not None and plan.speech_detector) or "")

    async def serve(
        self, connection: WebSocketConnection, opened_session: OpenedSession, limits: RateLimits | None
    ) -> None:
        """Run a session on an accepted connection until one side ends it."""
        outbox = EventSender(connection.send_text, STALLED_SECONDS, opened_session.log)
        session = self._create_session(opened_session, outbox, limits)
        end = SessionEnd(exchange.SERVER_ERROR, "internal error", over="internal error")
        try:
            if opened_session.restored is None:
                session.begin(str(opened_session.token) if opened_session.token else "", current_tenant().name)
            else:
                await session.resume(opened_session.restored, opened_session.seen)
            seconds = max(0.0, opened_session.expires - time.time())
            end = await self._converse(connection, session, outbox, seconds, limits)
        finally:
            await session.close(over=end.over if opened_session.log is not None else "closed")
            if end.code:
                await self._say_goodbye(connection, session, outbox, end)
            elif end.over and opened_session.log is not None:
                with suppress(OmnibusError, ClientDisconnected):
                    await outbox.flush_texts()

    def _create_session(
        self, opened_session: OpenedSession, outbox: EventSender, limits: RateLimits | None
    ) -> RealtimeSession:
        context = SessionContext(
            self._chat,
            self.chats,
            self._recordings,
            opened_session.abilities,
            int(opened_session.expires),
            HeldBytes().count_bytes,
            response_limit(limits),
            rate_limit_events(limits),
            self._find_detector,
            self._settings.realtime_early,
        )
        return RealtimeSession(opened_session.id, context, opened_session.config, outbox, opened_session.restored)

    async def _converse(
        self,
        connection: WebSocketConnection,
        session: RealtimeSession,
        outbox: EventSender,
        seconds: float,
        limits: RateLimits | None,
    ) -> SessionEnd:
        """Handle events until the session ends, at most for ``seconds``; returns its end."""
        loop = asyncio.get_running_loop()
        reading = loop.create_task(self._read_events(connection, session))
        sending = loop.create_task(_send_events(outbox))
        draining = loop.create_task(self._wait_drained(session))
        tasks = {reading, sending, draining, loop.create_task(_wait_key_revoked(limits))}
        try:
            done_tasks, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not done_tasks:
                error = EventRefused("The session reached its maximum duration: open another one.", SESSION_EXPIRED)
                return SessionEnd(exchange.GOING_AWAY, "session expired", error, over="expired")
            return next(iter(done_tasks)).result()
        finally:
            for task in tasks:
                await until_cancelled(task)

    async def _read_events(self, connection: WebSocketConnection, session: RealtimeSession) -> SessionEnd:
        idle, pace = self._settings.realtime_idle, EventPace()
        while True:
            try:
                async with asyncio.timeout(idle):
                    text = await connection.receive_text()
            except TimeoutError:
                if session.is_responding:
                    continue
                error = EventRefused(f"The client has sent nothing for {idle:g} s.", IDLE_TIMEOUT)
                return SessionEnd(exchange.NORMAL, "idle", error, over="idle")
            except OmnibusError as error:
                session.post_error(error)
                continue
            if text is None:
                return SessionEnd(over="closed" if connection.closed_code in _FINAL_CLOSES else "")
            try:
                await session.handle_text(text)
            except TooSlow as error:
                return SessionEnd(exchange.POLICY, error.message, over="slow")
            except Exception as error:  # noqa: BLE001 the client gets it
                session.post_error(client_error(error, session.id), read_event_id(text))
            await pace.wait()

    async def _say_goodbye(
        self, connection: WebSocketConnection, session: RealtimeSession, outbox: EventSender, end: SessionEnd
    ) -> None:
        """Send the waiting events and the error, then close the connection."""
        if end.error is not None:
            session.post_error(end.error)
        try:
            async with asyncio.timeout(exchange.CLOSE_SECONDS):
                await outbox.flush_texts()
        except (ClientDisconnected, TimeoutError, OmnibusError):
            pass  # the client does not read, or has resumed the session elsewhere
        await connection.close(end.code, end.reason)

    async def _wait_drained(self, session: RealtimeSession) -> SessionEnd:
        await self.wait_stop()
        await session.wait_responses()
        return SessionEnd(exchange.RESTART, "the gateway is stopping")


def _check_opens(token: ResumeToken, restored_session: RestoredSession) -> None:
    """Raise ``NotFound`` if the client may not have the session."""
    token.check_opens(restored_session.origin)
    if not current_tenant().owns(restored_session.origin.tenant):
        raise NotFound("the session of this token is unknown: open another one", param="resume")


def _check_goes_on(restored_session: RestoredSession) -> None:
    """Raise ``NotFound`` if the session has ended."""
    if restored_session.over or restored_session.origin.expires <= time.time():
        raise NotFound(
            f"the session has ended ({restored_session.over or 'expired'}): open another one", param="resume"
        )


async def _wait_key_revoked(limits: RateLimits | None) -> SessionEnd:
    await wait_revoked(limits)
    return SessionEnd(exchange.POLICY, "the API key was revoked", revoked_error(), over="revoked")


async def _send_events(outbox: EventSender) -> SessionEnd:
    try:
        await outbox.send_texts()
    except TooSlow as error:
        return SessionEnd(exchange.POLICY, error.message, over="slow")
    except Conflict:
        return SessionEnd(exchange.POLICY, "the session continues on another connection")
    except ClientDisconnected:
        pass
    return SessionEnd()


_QUERY = frozenset({"model", "intent", "resumable", "resume", "last_event_id"})
_REFUSED_QUERY = {
    "call_id": "calls over WebRTC or SIP are not supported: open a session with model",
}


class RealtimeRoute:
    """Accepts handshakes; ``omnibus_gateway.realtime`` handles the sessions."""

    def __init__(self, realtime: Realtime, secrets: ClientSecrets) -> None:
        self._realtime = realtime
        self._secrets = secrets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection, is_accepted = WebSocketConnection(receive, send), False
        try:
            if scope["path"] != PATH:
                raise NotFound("there is no WebSocket at this path")
            session = await self._open_session(scope)
            with self._realtime.admit():
                await connection.accept(choose_subprotocol(scope))
                is_accepted = True
                if session.restored is None:
                    GATEWAY.realtime_sessions.labels(session.config.model).inc()
                await self._realtime.serve(connection, session, scope.get(KEY_LIMITS))
        except OmnibusError as error:
            if is_accepted:  # later errors are events, as long as the client reads them
                log.warning("a realtime session ended: %s", error)
            elif is_unknown_model(error):
                await refuse_model(connection, scope, error)
            else:
                await refuse_request(rejecting_send(scope, send), error)

    async def _open_session(self, scope: Scope) -> OpenedSession:
        """Raises ``BadRequest``, ``NotFound``, ``Unauthorized``, ``StoreUnavailable`` and ``BusUnavailable``."""
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        for name in query:
            if name not in _QUERY:
                hint = _REFUSED_QUERY.get(name, "unknown parameter, omit it")
                raise BadRequest(f"{name[:64]}: {hint}.", param=name[:64])
        if query.get("resumable", "false") not in ("true", "false"):
            raise BadRequest("resumable must be true or false.", param="resumable")
        update = await self._secrets.find_update(bearer_token(sent_authorization(scope)))
        if "resume" in query:
            return await self._realtime.resume_session(
                ResumeToken.parse(query["resume"]), query.get("last_event_id", "")
            )
        if "last_event_id" in query:
            raise BadRequest("last_event_id requires resume: send it too.", param="last_event_id")
        kind = _choose_kind(query.get("intent", ""), update)
        model = _choose_model(query.get("model", ""), update, kind)
        return self._realtime.open_session(model, update, kind, resumable=query.get("resumable") == "true")

    def add_routes(self, app: FastAPI) -> None:
        """Answer plain HTTP requests to this path with 426."""
        app.add_route(PATH, _require_upgrade, methods=["GET"], include_in_schema=False)


def _choose_kind(intent: str, update: SessionUpdate | None) -> SessionKind:
    if intent not in ("", "transcription"):
        raise BadRequest("intent must be transcription, or omitted.", param="intent")
    if update is not None and intent and update.type != intent:
        raise BadRequest(f"The client secret is only for sessions of type {update.type!r}.", param="intent")
    return "transcription" if intent else update.type if update is not None else "realtime"


def _choose_model(model_name: str, update: SessionUpdate | None, kind: SessionKind) -> str:
    """Return the model of a session; a transcription may name it later."""
    model = model_name or (update.model if update is not None and update.model else "")
    if not model and kind == "realtime":
        raise BadRequest("Missing required parameter: 'model'.", param="model")
    return str(model)


async def _require_upgrade(_: Request) -> Response:
    raise HTTPException(426, "open a WebSocket at this path", headers={"Upgrade": "websocket"})


class ClientSecretRoute(PostRoute):
    """Creates client secrets."""

    def __init__(self, settings: GatewaySettings, realtime: Realtime, secrets: ClientSecrets) -> None:
        super().__init__(settings)
        self._realtime = realtime
        self._secrets = secrets

    async def handle_request(self, post: PostRequest, sending: ResponseWriter) -> None:
        secret_request = parse_client_secret_request(post.body)
        update = secret_request.session or SessionUpdate(type="realtime")
        session_view: dict[str, Any] = {"type": update.type, "object": "realtime.session"}
        if update.model or update.type == "transcription":
            config, _ = self._realtime.begin_config(update.model or "", update, update.type)
            session_view = config.to_event(None, 0)
        else:
            check_update(update)
        secret = await self._secrets.create(secret_request, session_view)
        await sending.send_body(JSON, encode_client_secret(secret))
