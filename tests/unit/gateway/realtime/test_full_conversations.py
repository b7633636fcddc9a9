"""Full conversations reject additions by name, without losing or blocking anything."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from omnibus.errors import Overloaded
from omnibus_gateway.dispatch.streams import merge_streams
from omnibus_gateway.realtime import conversation
from omnibus_gateway.realtime import service as session_limits
from omnibus_gateway.realtime.conversation import Conversation, ConversationItem, ItemPart
from omnibus_gateway.request import request
from tests.unit.gateway.house import ToyGateway
from tests.unit.gateway.realtime_house import SOUND, RealtimeCaller, join_deltas, list_types, open_realtime_call

#: Half a second of noise and 0.7 s of silence: one turn, of 24 kHz samples.
TURN = (np.random.default_rng(0).standard_normal(12000) * 8000).astype("<i2").tobytes() + bytes(33600)


async def send_audio(caller: RealtimeCaller, audio: bytes, **more: Any) -> None:
    await caller.send("input_audio_buffer.append", audio=base64.b64encode(audio).decode(), **more)


async def test_a_response_without_a_place_fails_and_audio_waits_for_one(
    caller: RealtimeCaller, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(conversation, "MAX_ITEMS", 1)
    await caller.update(audio={"input": {"turn_detection": None}})
    item = await caller.say("hello there")
    response = (await caller.respond())[-1]["response"]
    await send_audio(caller, SOUND)
    error = await caller.refused("input_audio_buffer.commit")
    await caller.ask("conversation.item.delete", "conversation.item.deleted", item_id=item)
    spoken_id = (await caller.ask("input_audio_buffer.commit", "conversation.item.done"))["item"]["id"]
    stored_item = (await caller.ask("conversation.item.retrieve", "conversation.item.retrieved", item_id=spoken_id))[
        "item"
    ]

    assert (response["status"], response["status_details"]["error"]["code"]) == ("failed", "bad_request")
    assert response["output"] == []
    assert (error["code"], error["event_id"]) == ("bad_request", "mine")
    assert base64.b64decode(stored_item["content"][0]["audio"]) == SOUND


async def test_a_turn_that_is_refused_moves_none_behind_it(caller: RealtimeCaller, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conversation, "MAX_ITEMS", 0)
    await send_audio(caller, TURN + TURN, event_id="mine")
    events = [await caller.next() for _ in range(6)]

    turn = ["input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped", "error"]
    assert list_types(events) == turn * 2
    assert [each["error"]["event_id"] for each in events if each["type"] == "error"] == ["mine", "mine"]
    assert 1200 - 300 - 60 <= events[3]["audio_start_ms"] <= 1200


def test_transcripts_count_among_the_bytes_that_a_conversation_holds():
    byte_counts: list[int] = []
    conversation = Conversation("conv_1", byte_counts.append)
    for id in ("a", "b"):
        conversation.insert_item(
            ConversationItem(id, "message", "user", parts=[ItemPart("input_audio", audio=bytes(100))])
        )
    conversation.write_down("a", "seven words", keeps_audio=True)
    conversation.write_down("b", "seven words", keeps_audio=False)
    whole = sum(byte_counts)
    for id in ("a", "b"):
        conversation.delete_item(id)

    assert whole == 100 + 2 * len("seven words")
    assert sum(byte_counts) == 0


async def test_words_that_come_with_audio_that_finds_no_room_are_sent(
    home: ToyGateway, monkeypatch: pytest.MonkeyPatch
):
    async def gather_batches(*arguments: Any) -> AsyncIterator[list[Any]]:
        yield [each async for batch in merge_streams(*arguments) for each in batch]

    def refuse_audio(_: Any, more: int) -> None:
        if more > 100:  # audio
            raise Overloaded("full")

    monkeypatch.setattr(request, "merge_streams", gather_batches)
    monkeypatch.setattr(session_limits.HeldBytes, "count_bytes", refuse_audio)
    async with open_realtime_call(home) as caller:
        await caller.update(audio={"input": {"turn_detection": None}})
        await caller.say("hello there")
        events = await caller.respond()

    response = events[-1]["response"]
    assert (response["status"], response["status_details"]["error"]["code"]) == ("failed", "overloaded")
    words = join_deltas(events, "response.output_audio_transcript.delta")
    assert words
    assert response["output"][0]["content"][0]["transcript"] == words
