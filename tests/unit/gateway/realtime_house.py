"""A test client of realtime sessions over a real socket."""

import base64
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import websockets
from websockets.asyncio.client import ClientConnection

from tests.unit.gateway.house import OMNI, ToyGateway
from tests.unit.gateway.wires import PATIENCE, open_doorway

#: Half a second of 24 kHz samples.
SOUND = bytes(24000)


class RealtimeCaller:
    """One session. It records all events received."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.events: list[dict[str, Any]] = []

    async def send(self, type: str, **fields: Any) -> None:
        await self.socket.send(json.dumps({"type": type, **fields}))

    async def next(self) -> dict[str, Any]:
        """Return the events up to and including the next one of ``type``."""
        import asyncio

        event = json.loads(await asyncio.wait_for(self.socket.recv(), PATIENCE))
        self.events.append(event)
        return dict(event)

    async def until(self, type: str) -> list[dict[str, Any]]:
        """Return the next event."""
        received_events = [await self.next()]
        while received_events[-1]["type"] != type:
            assert received_events[-1]["type"] != "error" or type == "error", received_events[-1]
            received_events.append(await self.next())
        return received_events

    async def ask(self, type: str, answer: str, **fields: Any) -> dict[str, Any]:
        """Send an event and return its answer."""
        await self.send(type, **fields)
        return (await self.until(answer))[-1]

    async def refused(self, type: str, **fields: Any) -> dict[str, Any]:
        """Send an event and return its error."""
        return dict((await self.ask(type, "error", event_id="mine", **fields))["error"])

    async def update(self, **session: Any) -> dict[str, Any]:
        answer = await self.ask("session.update", "session.updated", session={"type": "realtime", **session})
        return dict(answer["session"])

    async def say(self, text: str, **more: Any) -> str:
        """Add a user's message and return its id."""
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}], **more}
        return str((await self.ask("conversation.item.create", "conversation.item.done", item=item))["item"]["id"])

    async def speak(self, data: bytes = SOUND) -> str:
        """Append and commit audio and return its item's id."""
        await self.send("input_audio_buffer.append", audio=base64.b64encode(data).decode())
        return str((await self.ask("input_audio_buffer.commit", "conversation.item.done"))["item"]["id"])

    async def respond(self, **response: Any) -> list[dict[str, Any]]:
        """Return the events of a response."""
        await self.send("response.create", response=response)
        return await self.until("response.done")


@asynccontextmanager
async def open_realtime_call(home: ToyGateway, model: str = OMNI, **more: Any) -> AsyncIterator[RealtimeCaller]:
    """Yield a session on a real server, after its first two events."""
    async with open_doorway(home) as door, connect_caller(f"ws://localhost:{door.port}", model, **more) as caller:
        yield caller


@asynccontextmanager
async def connect_caller(base: str, model: str = OMNI, query: str = "", **more: Any) -> AsyncIterator[RealtimeCaller]:
    url = f"{base}/v1/realtime?{query or f'model={model}'}"
    # A full queue would delay the closing handshake.
    async with websockets.connect(url, max_size=None, **{"max_queue": None, **more}) as socket:
        caller = RealtimeCaller(socket)
        await caller.until("conversation.created")
        yield caller


def list_types(events: Sequence[dict[str, Any]]) -> list[str]:
    return [each["type"] for each in events]


def join_deltas(events: Sequence[dict[str, Any]], type: str) -> str:
    """Return the joined deltas of ``type``."""
    return "".join(each["delta"] for each in events if each["type"] == type)


def sound_of(events: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(base64.b64decode(each["delta"]) for each in events if each["type"] == "response.output_audio.delta")
