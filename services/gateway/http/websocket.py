"""WebSockets: handshakes that are refused as requests are, and messages with limits in both directions."""

import asyncio
from typing import Any

from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from omnibus.errors import BadRequest

#: Close codes (RFC 6455): clients come back after the last two, and do not after the others.
NORMAL, POLICY, SERVER_ERROR, GOING_AWAY, RESTART = 1000, 1008, 1011, 1001, 1012
#: Seconds that a client has to answer a ping, and that a connection has to close once all has been said.
PING_SECONDS, CLOSE_SECONDS = 20.0, 5.0
#: Bytes of the largest message.
MAX_MESSAGE_BYTES = 16 << 20
#: Subprotocol under which a browser, which cannot set headers, sends a key.
KEY_PROTOCOL = "openai-insecure-api-key."


class GatewayWebSocketProtocol(WebSocketsSansIOProtocol):
    """A connection after its upgrade. What the peer cannot read or close is cut off in time."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.loop.call_later(CLOSE_SECONDS, self.transport.abort)  # what waits for it would keep the connection open

    async def send(self, message: Any) -> None:
        try:
            await super().send(message)
        except RuntimeError:
            if self.close_sent and message["type"] == "websocket.send":
                # No pong, or a frame that means nothing: the server has closed it before the application knows.
                raise ClientDisconnected from None
            raise
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # else the end of the application would be taken for a defect

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        self.loop.call_later(CLOSE_SECONDS, self.transport.abort)  # no harm where it is closed by then


class WebSocketConnection:
    """One connection of a client, as a route uses it."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.closed_code = 0  # with which the client has closed it

    async def accept(self, subprotocol: str | None) -> None:
        """Complete the handshake."""
        await self._receive()
        await self._send({"type": "websocket.accept", "subprotocol": subprotocol, "headers": []})

    async def send_text(self, text: str) -> None:
        """Send a message once the client has room for it. Raises ``ClientDisconnected``."""
        await self._send({"type": "websocket.send", "text": text})

    async def receive_text(self) -> str | None:
        """The next message; None when the client has left. Raises ``BadRequest`` for one that is no text."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            self.closed_code = int(message.get("code") or 0)
            return None
        text = message.get("text")
        if text is None:
            raise BadRequest("Events are JSON in messages of text, not of bytes.")
        return str(text)

    async def close(self, code: int, reason: str) -> None:
        """Close it, unless the client was faster or does not read."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._send({"type": "websocket.close", "code": code, "reason": reason})
        except (ClientDisconnected, RuntimeError, TimeoutError):
            pass


def rejecting_send(scope: Scope, send: Send) -> Send:
    """``send`` for a response that refuses the request of ``scope``, also where that is a handshake."""
    if scope["type"] != "websocket":
        return send

    def send_rejection(message: Message) -> Any:
        return send({**message, "type": f"websocket.{message['type']}"})

    return send_rejection


def sent_authorization(scope: Scope) -> str:
    """The ``Authorization`` header of a request; of a handshake also the key that a browser puts elsewhere."""
    header = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    if header or scope["type"] != "websocket":
        return header
    return next((f"Bearer {key}" for key in _protocol_keys(scope)), "")


def _protocol_keys(scope: Scope) -> list[str]:
    return [each.removeprefix(KEY_PROTOCOL) for each in scope["subprotocols"] if each.startswith(KEY_PROTOCOL)]
