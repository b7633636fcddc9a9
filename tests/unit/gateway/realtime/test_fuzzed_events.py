"""Random sequences of events, valid and broken, over real sockets: no error of ours, no leak, no session that hangs."""

import asyncio
import base64
import json
import os
import random
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed

from tests.unit.gateway.house import OMNI, PNG, House, house
from tests.unit.gateway.realtime_house import Caller, connected
from tests.unit.gateway.wires import PATIENCE, doorway
from tests.unit.sidecar.node import until

#: Sequences of a run, the first of them, and events of one; long runs set more, and run in pieces.
SEQUENCES = int(os.environ.get("OMNIBUS_FUZZ_SESSIONS", "25"))
FIRST = int(os.environ.get("OMNIBUS_FUZZ_FIRST_SESSION", "0"))
LONGEST = 12
AT_ONCE = 4
SOUND = base64.b64encode(bytes(2400)).decode()
IMAGE = "data:image/png;base64," + base64.b64encode(PNG).decode()
TYPES = [
    "session.update", "input_audio_buffer.append", "input_audio_buffer.commit", "input_audio_buffer.clear",
    "conversation.item.create", "conversation.item.retrieve", "conversation.item.truncate",
    "conversation.item.delete", "response.create", "response.cancel", "output_audio_buffer.clear",
]  # fmt: skip
ODD = [None, True, -1, 2**70, 1e308, "", "x" * 300, "\ud800", [], {}, [[]], {"type": "x"}, "a", "b", "root"]


def item(dice: random.Random) -> dict[str, Any]:
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


def fields(dice: random.Random, type: str) -> dict[str, Any]:
    modality = [dice.choice(["text", "audio"])]
    known: dict[str, dict[str, Any]] = {
        "session.update": {
            "session": {"type": "realtime", "output_modalities": modality, "instructions": dice.choice(["", "x"]),
                        "audio": {"input": {"format": {"type": dice.choice(["audio/pcm", "audio/pcmu"])}}}}
        },
        "input_audio_buffer.append": {"audio": SOUND},
        "conversation.item.create": {"item": item(dice), "previous_item_id": dice.choice([None, None, "root", "a"])},
        "conversation.item.retrieve": {"item_id": dice.choice("abc")},
        "conversation.item.truncate": {"item_id": dice.choice("abc"), "content_index": 0, "audio_end_ms": 5},
        "conversation.item.delete": {"item_id": dice.choice("abc")},
        "response.create": {
            "response": dice.choice([{}, {"conversation": "none"}, {"input": [item(dice)]},
                                     {"output_modalities": modality, "max_output_tokens": 3}])
        },
    }  # fmt: skip
    return known.get(type, {})


def frame(dice: random.Random, number: int) -> str | bytes:
    """A frame, most of them events that are understood."""
    type = dice.choice(TYPES)
    event = {"type": type, "event_id": str(number), **fields(dice, type)}
    broken = dice.random()
    if broken < 0.25:
        place: Any = event
        while isinstance(place, dict) and place and dice.random() < 0.6:
            key = dice.choice(list(place))
            if not isinstance(place[key], dict):
                break
            place = place[key]
        place[dice.choice([*place, "odd"])] = dice.choice(ODD)
    text = json.dumps(event)
    if broken < 0.03:
        return text.encode()
    return text[: dice.randrange(len(text))] if broken < 0.06 else text


async def play(base: str, seed: int) -> list[dict[str, Any]]:
    """One session; the errors that it got. At its end it still answers, unless it left in the middle."""
    dice = random.Random(seed)
    async with connected(base) as caller:
        for number in range(dice.randint(1, LONGEST)):
            await caller.socket.send(frame(dice, number))
        if dice.random() < 0.5:
            await _still_answers(caller)
        else:
            await asyncio.sleep(0)
    ended = [each["response"]["status_details"] for each in caller.events if each["type"] == "response.done"]
    failures = [each["error"] for each in ended if each and each["type"] == "failed"]
    return [*failures, *(each["error"] for each in caller.events if each["type"] == "error")]


async def _still_answers(caller: Caller) -> None:
    await caller.send("conversation.item.delete", item_id="nothing", event_id="last")
    while (found := await caller.next())["type"] != "error" or found["error"]["event_id"] != "last":
        assert found["type"] != "error" or found["error"]["type"] != "server_error", found


async def test_any_sequence_of_events_is_answered_and_leaves_nothing(tmp_path: Path):
    async with house(tmp_path, within=60 + SEQUENCES) as home:
        await home.all_of(OMNI)
        errors = await _play_all(home)
        await until(lambda: home.table.sessions.count == 0)
        await home.emptied()

    assert len(errors) > SEQUENCES // 2
    assert {each["type"] for each in errors} <= {"invalid_request_error", "rate_limit_error"}
    assert all(each["code"] and each["message"] for each in errors)


async def _play_all(home: House) -> list[dict[str, Any]]:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(base: str, seed: int) -> list[dict[str, Any]]:
        async with room, asyncio.timeout(PATIENCE * 2):
            try:
                return await play(base, seed)
            except ConnectionClosed as error:
                raise AssertionError(f"the gateway closed session {seed}") from error

    async with doorway(home) as door:
        base = f"ws://localhost:{door.port}"
        found = await asyncio.gather(*(one(base, seed) for seed in range(FIRST, FIRST + SEQUENCES)))
    return [error for errors in found for error in errors]
