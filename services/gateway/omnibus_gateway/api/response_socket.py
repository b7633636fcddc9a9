"""``/v1/responses`` over a WebSocket: accepts handshakes, and lets ``ResponseSockets`` answer events."""

import logging

from starlette.types import Receive, Scope, Send

from omnibus.errors import OmnibusError, Unauthorized
from omnibus.store import SECRET_PREFIX
from omnibus_gateway.auth.admin import bearer_token
from omnibus_gateway.http.response import refuse_request
from omnibus_gateway.http.websocket import WebSocketConnection, rejecting_send, sent_authorization
from omnibus_gateway.responses.sockets import ResponseSockets
from omnibus_gateway.tenancy.rate_limits import KEY_LIMITS

log = logging.getLogger(__name__)


class ResponseSocketRoute:
    """Opens WebSocket connections of ``sockets``."""

    def __init__(self, sockets: ResponseSockets) -> None:
        self._sockets = sockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection, is_accepted = WebSocketConnection(receive, send), False
        try:
            if bearer_token(sent_authorization(scope)).startswith(SECRET_PREFIX):
                raise Unauthorized("a client secret is only for realtime sessions: send an API key")
            with self._sockets.admit():
                await connection.accept(None)
                is_accepted = True
                await self._sockets.serve(connection, scope.get(KEY_LIMITS))
        except OmnibusError as error:
            if is_accepted:  # later errors are events, as long as the client reads them
                log.warning("a connection of responses ended: %s", error)
            else:
                await refuse_request(rejecting_send(scope, send), error)
