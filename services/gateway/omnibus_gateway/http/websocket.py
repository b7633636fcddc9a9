"""WebSockets: rejected handshakes get a normal HTTP response, and messages have limits in both directions."""

import asyncio
from typing import Any

from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from omnibus.errors import BadRequest

#: Close codes (RFC 6455): clients reconnect after the last two, and not after the others.
NORMAL, POLICY, SERVER_ERROR, GOING_AWAY, RESTART = 1000, 1008, 1011, 1001, 1012
#: Seconds for a client to answer a ping, and for the close of a connection.
PING_SECONDS, CLOSE_SECONDS = 20.0, 5.0
#: Maximum bytes of a message.
MAX_MESSAGE_BYTES = 16 << 20
#: Subprotocol under which a browser, which cannot set headers, sends a key.
KEY_PROTOCOL = "openai-insecure-api-key."


class GatewayWebSocketProtocol(WebSocketsSansIOProtocol):
    """Connection after its upgrade. Invalid handshakes and stalled connections are closed in time."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.loop.call_later(CLOSE_SECONDS, self.transport.abort)  # pending writes would keep the connection open

    async def send(self, message: Any) -> None:
        try:
            await super().send(message)
        except RuntimeError:
            if self.close_sent and message["type"] == "websocket.send":
                # No pong, or an invalid frame: the server has closed it before the application knows.
                raise ClientDisconnected from None
            raise
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # otherwise uvicorn would report the end of the application as an error

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        self.loop.call_later(CLOSE_SECONDS, self.transport.abort)  # no effect if it is already closed


class WebSocketConnection:
    """One client connection, as a route uses it."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.closed_code = 0  # close code of the client

    async def accept(self, subprotocol: str | None) -> None:
        """Complete the handshake."""
        await self._receive()
        await self._send({"type": "websocket.accept", "subprotocol": subprotocol, "headers": []})

    async def send_text(self, text: str) -> None:
        """Send a message when the client has room for it. Raises ``ClientDisconnected``."""
        await self._send({"type": "websocket.send", "text": text})

    async def receive_text(self) -> str | None:
        """Return the next message; None after a disconnect. Raises ``BadRequest`` for a binary one."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            self.closed_code = int(message.get("code") or 0)
            return None
        text = message.get("text")
        if text is None:
            raise BadRequest("Events must be JSON in text messages, not in binary ones.")
        return str(text)

    async def close(self, code: int, reason: str) -> None:
        """Close it, unless the client has closed it or does not read."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._send({"type": "websocket.close", "code": code, "reason": reason})
        except (ClientDisconnected, RuntimeError, TimeoutError):
            pass


def rejecting_send(scope: Scope, send: Send) -> Send:
    """Return a ``send`` that also rejects WebSocket handshakes."""
    if scope["type"] != "websocket":
        return send

    def send_rejection(message: Message) -> Any:
        return send({**message, "type": f"websocket.{message['type']}"})

    return send_rejection


def sent_authorization(scope: Scope) -> str:
    """Return the ``Authorization`` header; in a handshake, also the key in a browser's subprotocol."""
    header = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    if header or scope["type"] != "websocket":
        return header
    return next((f"Bearer {key}" for key in _protocol_keys(scope)), "")


def _protocol_keys(scope: Scope) -> list[str]:
    return [each.removeprefix(KEY_PROTOCOL) for each in scope["subprotocols"] if each.startswith(KEY_PROTOCOL)]
