"""A voice session with an interruption, a pause, and a reconnection."""

import asyncio
import base64
import json
from typing import Any

import numpy as np
import websockets
from websockets.asyncio.client import ClientConnection

from tests.e2e.metrics.tenants import make_bearer
from tests.e2e.system import OMNI, System

WITHIN = 60.0  # seconds
ITEM = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "tell me a long story"}]}

_RATE = 24_000  # samples per second


def _make_sound(seconds: float, loud: float) -> str:
    samples = 32767 * loud * np.sin(np.arange(int(seconds * _RATE)) * (2 * np.pi * 440 / _RATE))
    return base64.b64encode(samples.astype("<i2").tobytes()).decode()


#: Somebody speaks, pauses for so long that the turn may end, and speaks on.
_PAUSING = [_make_sound(0.5, 0.3), _make_sound(0.3, 0.0), _make_sound(0.3, 0.3)]


async def hold_conversation(system: System) -> None:
    base = f"{system.url.replace('http', 'ws', 1)}/v1/realtime"
    headers = {"authorization": make_bearer()}
    async with asyncio.timeout(WITHIN):
        async with websockets.connect(f"{base}?model={OMNI}&resumable=true", additional_headers=headers) as socket:
            token = (await _next_event(socket, "session.created"))["session"]["resume_token"]
            await _send_event(socket, "conversation.item.create", item=ITEM)
            await _send_event(socket, "response.create")
            await _next_event(socket, "response.output_audio.delta")
            await _send_event(socket, "response.cancel")
            last = await _next_event(socket, "response.done")
            for sound in _PAUSING:
                await _send_event(socket, "input_audio_buffer.append", audio=sound)
                await asyncio.sleep(0.3)  # an answer that is begun in the pause goes on for as long
            await _send_event(socket, "session.update", session={"type": "realtime"})
            await _next_event(socket, "session.updated")
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
