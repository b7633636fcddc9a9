"""``/v1/realtime``: sessions over WebSockets, and client secrets that open them from browsers."""

import logging
from typing import Any
from urllib.parse import parse_qsl

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omnibus.errors import BadRequest, NotFound, OmnibusError
from omnibus.metrics import GATEWAY
from omnibus.settings import GatewaySettings
from omnibus_gateway.auth.access_rules import bearer_token
from omnibus_gateway.http.exchange import PostRequest, PostRoute
from omnibus_gateway.http.response import JSON, ResponseWriter, refuse_request
from omnibus_gateway.http.websocket import WebSocketConnection, rejecting_send, sent_authorization
from omnibus_gateway.openai.realtime.session import (
    PATH,
    SessionKind,
    SessionUpdate,
    encode_client_secret,
    parse_client_secret_request,
)
from omnibus_gateway.realtime.config import check_update
from omnibus_gateway.realtime.service import OpenedSession, Realtime
from omnibus_gateway.realtime.tokens import ClientSecrets, ResumeToken
from omnibus_gateway.tenancy.rate_limits import KEY_LIMITS

log = logging.getLogger(__name__)

#: The subprotocol that browsers name.
_SUBPROTOCOL = "realtime"
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
                await connection.accept(_SUBPROTOCOL if _SUBPROTOCOL in scope["subprotocols"] else None)
                is_accepted = True
                if session.restored is None:
                    GATEWAY.realtime_sessions.labels(session.config.model).inc()
                await self._realtime.serve(connection, session, scope.get(KEY_LIMITS))
        except OmnibusError as error:
            if is_accepted:  # later errors are events, as long as the client reads them
                log.warning("a realtime session ended: %s", error)
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
