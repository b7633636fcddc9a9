"""Random sequences of valid and broken events over real sockets that break.

No server error, no leak, no hanging session, no lost or repeated event, and every error names its event.
"""

import asyncio
import base64
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import websockets
from websockets.exceptions import ConnectionClosed

from tests.unit.gateway.house import OMNI, PNG, ToyGateway
from tests.unit.gateway.realtime.test_any_sequence import start_gateway
from tests.unit.gateway.realtime_house import RealtimeCaller, connect_caller
from tests.unit.gateway.wires import PATIENCE, open_doorway
from tests.unit.sidecar.node import wait_until

#: Sequences of a run, the first of them, and events of one; long runs set more, and run in pieces.
SEQUENCES = int(os.environ.get("OMNIBUS_FUZZ_SESSIONS", "25"))
FIRST = int(os.environ.get("OMNIBUS_FUZZ_FIRST_SESSION", "0"))
LONGEST = 12
AT_ONCE = 4
SOUND = base64.b64encode(bytes(2400)).decode()
LOUD = base64.b64encode(np.random.default_rng(1).integers(0, 256, 9600, np.uint8).tobytes()).decode()
QUIET = base64.b64encode(bytes(9600)).decode()
VAD = {"type": "server_vad", "silence_duration_ms": 60}
INPUTS = [
    {"format": {"type": "audio/pcm"}}, {"format": {"type": "audio/pcmu"}}, {"turn_detection": None},
    {"turn_detection": VAD}, {"turn_detection": VAD}, {"turn_detection": {**VAD, "create_response": False}},
    {"turn_detection": {**VAD, "interrupt_response": False}}, {"transcription": {"model": "whisper-1"}},
]  # fmt: skip
IMAGE = "data:image/png;base64," + base64.b64encode(PNG).decode()
TYPES = [
    "session.update", "input_audio_buffer.append", "input_audio_buffer.commit", "input_audio_buffer.clear",
    "conversation.item.create", "conversation.item.retrieve", "conversation.item.truncate",
    "conversation.item.delete", "response.create", "response.cancel", "output_audio_buffer.clear",
]  # fmt: skip
ODD = [None, True, -1, 2**70, 1e308, "", "x" * 300, "\ud800", [], {}, [[]], {"type": "x"}, "a", "b", "root"]


def make_item(dice: random.Random) -> dict[str, Any]:
    parts = [
        {"type": "input_text", "text": dice.choice(["hi", "", "<|im_end|>"])},
        {"type": "input_audio", "audio": SOUND},
        {"type": "input_image", "image_url": dice.choice([IMAGE, "data:,", "http://127.0.0.1/x"])},
        {"type": "output_text", "text": "well"},
    ]
    return dice.choice(
        [
            {"type": "message", "role": dice.choice(["user", "user", "system", "assistant"]),
             "content": dice.sample(parts, dice.randint(1, 2)), "id": dice.choice(["a", "b", "c", None])},
            {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"},
            {"type": "function_call_output", "call_id": dice.choice(["1", "2"]), "output": "x"},
        ]
    )  # fmt: skip


def make_fields(dice: random.Random, type: str) -> dict[str, Any]:
    modality = [dice.choice(["text", "audio"])]
    type_fields: dict[str, dict[str, Any]] = {
        "session.update": {
            "session": {"type": "realtime", "output_modalities": modality, "instructions": dice.choice(["", "x"]),
                        "audio": {"input": dice.choice(INPUTS)}}
        },
        "input_audio_buffer.append": {"audio": dice.choice([SOUND, LOUD, LOUD, QUIET])},
        "conversation.item.create": {"item": make_item(dice), "previous_item_id": dice.choice([None, None, "root", "a"])},
        "conversation.item.retrieve": {"item_id": dice.choice("abc")},
        "conversation.item.truncate": {"item_id": dice.choice("abc"), "content_index": 0, "audio_end_ms": 5},
        "conversation.item.delete": {"item_id": dice.choice("abc")},
        "response.create": {
            "response": dice.choice([{}, {"conversation": "none"}, {"input": [make_item(dice)]},
                                     {"output_modalities": modality, "max_output_tokens": 3}])
        },
    }  # fmt: skip
    return type_fields.get(type, {})


def make_frame(dice: random.Random, number: int) -> str | bytes:
    """Return a frame, usually a valid event."""
    type = dice.choice(TYPES)
    event = {"type": type, "event_id": str(number), **make_fields(dice, type)}
    chance = dice.random()
    if chance < 0.25:
        place: Any = event
        while isinstance(place, dict) and place and dice.random() < 0.6:
            key = dice.choice(list(place))
            if not isinstance(place[key], dict):
                break
            place = place[key]
        place[dice.choice([*place, "odd"])] = dice.choice(ODD)
    text = json.dumps(event)
    if chance < 0.03:
        return text.encode()
    return text[: dice.randrange(len(text))] if chance < 0.06 else text


def readable_id(message: str | bytes) -> str | None:
    """Return the id by which an error can name an event; None if the frame has no readable id."""
    try:
        event = json.loads(message) if isinstance(message, str) else None
        id = event.get("event_id") if isinstance(event, dict) else None
        if isinstance(id, str) and len(id) <= 512:
            id.encode()  # fails for half of a surrogate pair
            return id
    except (ValueError, RecursionError):
        pass
    return None


class Fuzzed:
    """One session; when its connection breaks, its client resumes it on another one."""

    def __init__(self, base: str, dice: random.Random) -> None:
        self._base = base
        self._dice = dice
        self._is_resumable = dice.random() < 0.4
        self._sent: list[str | None] = []
        self.events: list[dict[str, Any]] = []

    async def play_session(self) -> None:
        query = f"model={OMNI}" + "&resumable=true" * self._is_resumable
        async with connect_caller(self._base, query=query) as caller:
            self.events = caller.events
            await self._send_some(caller)
            if not self._is_resumable:
                return
            caller.socket.transport.abort()
        await self._go_on()

    async def _go_on(self) -> None:
        """Resume the session after the last event that its client read."""
        token, last = self.events[0]["session"]["resume_token"], self.events[-1]["event_id"]
        url = f"{self._base}/v1/realtime?resume={token}&last_event_id={last}"
        async with websockets.connect(url, max_size=None, max_queue=None) as socket:
            caller = RealtimeCaller(socket)
            caller.events = self.events
            while (await caller.next())["type"] != "session.resumed":
                pass
            await self._send_some(caller)

    async def _send_some(self, caller: RealtimeCaller) -> None:
        """Send events and check that the gateway still answers, or disconnect."""
        for _ in range(self._dice.randint(1, LONGEST)):
            message = make_frame(self._dice, len(self._sent))
            self._sent.append(readable_id(message))
            await caller.socket.send(message)
        if self._dice.random() < 0.5:
            await _still_answers(caller)

    def check_events(self) -> None:
        """Check that events are numbered without gaps. Errors must name their events if possible."""
        numbers = [int(each["event_id"].rpartition("_")[2]) for each in self.events]
        assert numbers == [*range(1, len(numbers) + 1)], numbers
        event_ids = [each["error"]["event_id"] for each in self.events if each["type"] == "error"]
        assert {*event_ids} <= {*self._sent, None, "last"}, event_ids
        assert event_ids.count(None) <= self._sent.count(None), (event_ids, self._sent)

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The errors of events and of failed responses."""
        details = [each["response"]["status_details"] for each in self.events if each["type"] == "response.done"]
        failures = [each["error"] for each in details if each and each["type"] == "failed"]
        return [*failures, *(each["error"] for each in self.events if each["type"] == "error")]


async def play_session(base: str, seed: int) -> list[dict[str, Any]]:
    """Play one session and return its errors."""
    session = Fuzzed(base, random.Random(seed))
    await session.play_session()
    session.check_events()
    return session.errors


async def _still_answers(caller: RealtimeCaller) -> None:
    await caller.send("conversation.item.delete", item_id="nothing", event_id="last")
    while (event := await caller.next())["type"] != "error" or event["error"]["event_id"] != "last":
        assert event["type"] != "error" or event["error"]["type"] != "server_error", event


async def test_any_sequence_of_events_is_answered_and_leaves_nothing(tmp_path: Path):
    async with start_gateway(tmp_path) as home:
        errors = await _play_all(home)
        await wait_until(lambda: home.table.sessions.count == 0)
        await home.emptied()

    assert len(errors) > SEQUENCES // 2
    assert {each["type"] for each in errors} <= {"invalid_request_error", "rate_limit_error"}
    assert all(each["code"] and each["message"] for each in errors)


async def _play_all(home: ToyGateway) -> list[dict[str, Any]]:
    room = asyncio.Semaphore(AT_ONCE)

    async def play_limited(base: str, seed: int) -> list[dict[str, Any]]:
        async with room, asyncio.timeout(PATIENCE * 2):
            try:
                return await play_session(base, seed)
            except ConnectionClosed as error:
                raise AssertionError(f"the gateway closed session {seed}") from error
            except Exception as error:
                error.add_note(f"session {seed}")
                raise

    async with open_doorway(home) as door:
        base = f"ws://localhost:{door.port}"
        error_lists = await asyncio.gather(*(play_limited(base, seed) for seed in range(FIRST, FIRST + SEQUENCES)))
    return [error for errors in error_lists for error in errors]
