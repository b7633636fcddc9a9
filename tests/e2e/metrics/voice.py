"""A session by voice that is interrupted while it speaks, and comes back on another connection."""

import asyncio
import json
from typing import Any

import websockets
from websockets.asyncio.client import ClientConnection

from tests.e2e.metrics.tenants import bearer
from tests.e2e.system import OMNI, System

WITHIN = 60.0  # seconds
ITEM = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "tell me a long story"}]}


async def converse(system: System) -> None:
    base = f"{system.url.replace('http', 'ws', 1)}/v1/realtime"
    headers = {"authorization": bearer()}
    async with asyncio.timeout(WITHIN):
        async with websockets.connect(f"{base}?model={OMNI}&resumable=true", additional_headers=headers) as socket:
            token = (await _next_event(socket, "session.created"))["session"]["resume_token"]
            await _send_event(socket, "conversation.item.create", item=ITEM)
            await _send_event(socket, "response.create")
            await _next_event(socket, "response.output_audio.delta")
            await _send_event(socket, "response.cancel")
            last = await _next_event(socket, "response.done")
            socket.transport.abort()  # one that is closed has ended
        assert last["response"]["status"] == "cancelled", last
        again = f"{base}?resume={token}&last_event_id={last['event_id']}"
        async with websockets.connect(again, additional_headers=headers) as socket:
            await _next_event(socket, "session.resumed")


async def _send_event(socket: ClientConnection, type: str, **fields: Any) -> None:
    await socket.send(json.dumps({"type": type, **fields}))


async def _next_event(socket: ClientConnection, type: str) -> dict[str, Any]:
    while (event := json.loads(await socket.recv()))["type"] != type:
        assert event["type"] != "error", event
    return event
