"""Client events: their effect on session and conversation, and errors that name the fault."""

import base64
import struct

import pytest

from omnibus_gateway.openai.realtime.session import ALawFormat, MuLawFormat
from omnibus_gateway.realtime.audio_format import to_pcm
from tests.unit.gateway.house import OMNI, TEXT, House, house
from tests.unit.gateway.realtime_house import SOUND, Caller, calls, joined

MESSAGE = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}


async def test_a_session_says_what_holds_and_what_has_changed(caller: Caller):
    created = caller.events[0]["session"]
    changed = await caller.update(
        tracing="auto", instructions="Be short.", tools=[{"type": "function", "name": "weather"}], max_output_tokens=64
    )
    cleared = await caller.update(instructions=None, tools=[], audio={"output": {"voice": "alloy"}})

    assert created["id"].startswith("sess_")
    assert created["object"] == "realtime.session"
    assert created["model"] == OMNI
    assert created["output_modalities"] == ["audio"]
    assert created["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24000}
    assert (changed["instructions"], changed["max_output_tokens"]) == ("Be short.", 64)
    assert changed["tools"][0]["name"] == "weather"
    assert (cleared["instructions"], cleared["tools"], cleared["max_output_tokens"]) == ("", [], 64)
    assert cleared["audio"]["output"]["voice"] == "alloy"


async def test_what_is_said_is_written_down_beside_the_conversation(caller: Caller):
    how = {"model": "gpt-4o-mini-transcribe", "language": "en"}
    shown = await caller.update(audio={"input": {"transcription": how, "turn_detection": None}})
    item = await caller.speak()
    events = await caller.until("conversation.item.input_audio_transcription.completed")
    kept = await caller.ask("conversation.item.retrieve", "conversation.item.retrieved", item_id=item)
    wrong = {"type": "realtime", "audio": {"input": {"transcription": {"model": "nobody"}}}}
    error = await caller.refused("session.update", session=wrong)

    assert shown["audio"]["input"]["transcription"] == {**how, "prompt": None}
    told, done = joined(events, "conversation.item.input_audio_transcription.delta"), events[-1]
    assert (done["item_id"], done["content_index"], done["transcript"]) == (item, 0, told)
    assert "Transcribe the audio" in told  # the toy repeats its prompt
    assert done["usage"]["type"] == "tokens"
    assert kept["item"]["content"][0]["transcript"] == told
    assert error["code"] == "not_found"


REFUSALS = [
    ("session.update", {"session": {"type": "realtime", "colour": "red"}}, "session.colour"),
    ("session.update", {"session": {"type": "realtime", "model": "other"}}, "session.model"),
    ("session.update", {"session": {"type": "transcription"}}, "session.type"),
    ("session.update", {"session": {"type": "realtime", "output_modalities": ["text", "audio"]}}, "session.output_mod"),
    ("session.update", {"session": {"type": "realtime", "prompt": {"id": "p"}}}, "session.prompt"),
    (
        "session.update",
        {"session": {"type": "realtime", "audio": {"input": {"noise_reduction": {"type": "near_field"}}}}},
        "session.audio.input.noise_reduction",
    ),
    (
        "session.update",
        {"session": {"type": "realtime", "audio": {"output": {"voice": "nobody"}}}},
        "session.audio.output.voice",
    ),
    ("session.update", {"session": {"type": "realtime", "tools": [{"type": "mcp"}]}}, "session.tools[0]"),
    ("input_audio_buffer.append", {"audio": "no base64!"}, "audio"),
    ("input_audio_buffer.append", {}, "audio"),
    ("input_audio_buffer.dance", {}, None),
    ("output_audio_buffer.clear", {}, "type"),
    ("conversation.item.delete", {"item_id": "nothing"}, "item_id"),
    ("conversation.item.create", {"item": MESSAGE, "previous_item_id": "nothing"}, "previous_item_id"),
    ("conversation.item.create", {"item": {"type": "mcp_call"}}, "item"),
    (
        "conversation.item.create",
        {"item": {"type": "message", "role": "assistant", "content": [{"type": "input_text", "text": "x"}]}},
        "item.content[0].type",
    ),
    (
        "conversation.item.create",
        {
            "item": {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_audio", "transcript": "x", "audio": "AAAA"}],
            }
        },
        "item.content[0].audio",
    ),
    ("response.create", {}, "response"),
    ("response.create", {"response": {"input": [{"type": "item_reference", "id": "nothing"}]}}, "response.input[0].id"),
    ("response.create", {"response": {"input": [{"type": "dance"}]}}, "response.input"),
]


async def test_what_cannot_be_obeyed_is_refused_by_name_and_the_session_goes_on(caller: Caller):
    for type, fields, param in REFUSALS:
        error = await caller.refused(type, **fields)

        assert error["event_id"] == "mine", (type, fields)
        assert error["type"] == "invalid_request_error", error
        assert str(error["param"]).startswith(param) if param else error["param"] in ("type", None), error
    await caller.socket.send(b"\x00\x01")
    assert (await caller.until("error"))[-1]["error"]["event_id"] is None
    await caller.socket.send("{broken")
    assert "JSON" in (await caller.until("error"))[-1]["error"]["message"]
    assert await caller.say("still here")


async def test_items_are_put_where_they_belong_and_can_be_read_and_removed(caller: Caller):
    last = await caller.say("three", id="c")
    created = {"item": {**MESSAGE, "id": "a"}, "previous_item_id": "root"}
    first = await caller.ask("conversation.item.create", "conversation.item.added", **created)
    created = {"item": {**MESSAGE, "id": "b"}, "previous_item_id": "a"}
    second = await caller.ask("conversation.item.create", "conversation.item.added", **created)
    taken = await caller.refused("conversation.item.create", item={**MESSAGE, "id": "b"})
    await caller.ask("conversation.item.delete", "conversation.item.deleted", item_id="a")
    gone = await caller.refused("conversation.item.retrieve", item_id="a")
    kept = (await caller.ask("conversation.item.retrieve", "conversation.item.retrieved", item_id="b"))["item"]

    assert last == "c"
    assert (first["previous_item_id"], second["previous_item_id"]) == (None, "a")
    assert (taken["param"], gone["param"]) == ("item.id", "item_id")
    assert kept["content"] == [{"type": "input_text", "text": "hi"}]


@pytest.mark.parametrize("action", ["retrieve", "truncate", "delete"])
async def test_an_item_that_is_gone_has_the_code_that_clients_take_for_a_race(caller: Caller, action: str):
    """pipecat ends its session at unknown codes. At this one it fails only the call."""
    place = {"content_index": 0, "audio_end_ms": 0} if action == "truncate" else {}

    error = await caller.refused(f"conversation.item.{action}", item_id="gone", **place)

    assert (error["code"], error["param"]) == (f"item_{action}_invalid_item_id", "item_id")
    assert await caller.say("still here")


async def test_audio_is_committed_cleared_and_never_committed_empty(caller: Caller):
    empty = await caller.refused("input_audio_buffer.commit")
    await caller.send("input_audio_buffer.append", audio=base64.b64encode(SOUND).decode())
    await caller.ask("input_audio_buffer.clear", "input_audio_buffer.cleared")
    cleared = await caller.refused("input_audio_buffer.commit")
    item = await caller.speak()
    shown = await caller.ask("conversation.item.retrieve", "conversation.item.retrieved", item_id=item)

    assert (empty["code"], cleared["code"]) == ("input_audio_buffer_commit_empty",) * 2
    assert base64.b64decode(shown["item"]["content"][0]["audio"]) == SOUND
    committed = next(each for each in caller.events if each["type"] == "input_audio_buffer.committed")
    assert committed["item_id"] == item


async def test_a_model_that_does_not_speak_answers_in_text(home: House):
    await home.all_of(TEXT)
    async with calls(home, TEXT) as caller:
        assert caller.events[0]["session"]["output_modalities"] == ["text"]
        error = await caller.refused("session.update", session={"type": "realtime", "output_modalities": ["audio"]})
    assert error["param"] == "session.output_modalities"


async def test_the_voice_is_fixed_once_it_has_spoken(caller: Caller):
    await caller.say("hello")
    await caller.respond()
    error = await caller.refused("session.update", session={"type": "realtime", "audio": {"output": {"voice": "ash"}}})

    assert error["param"] == "session.audio.output.voice"


async def test_what_a_session_holds_counts_as_bodies_of_requests_do(tmp_path):
    async with house(tmp_path, bodies=100_000) as home:
        await home.all_of(OMNI)
        async with calls(home) as caller:
            for _ in range(6):
                await caller.send("input_audio_buffer.append", audio=base64.b64encode(SOUND).decode())
            await caller.send("input_audio_buffer.append", audio=base64.b64encode(SOUND).decode(), event_id="last")
            error = (await caller.until("error"))[-1]["error"]
            await caller.ask("input_audio_buffer.clear", "input_audio_buffer.cleared")
            assert await caller.speak()

    assert (error["code"], error["event_id"]) == ("overloaded", "last")


@pytest.mark.parametrize(
    ("format", "known"),
    [  # ITU-T G.711, tables 1 and 2
        (MuLawFormat(), {0xFF: 0, 0x7F: 0, 0x80: 32124, 0x00: -32124, 0xF0: 120}),
        (ALawFormat(), {0xD5: 8, 0x55: -8, 0xAA: 32256, 0x2A: -32256}),
    ],
)
def test_companded_samples_are_those_of_the_standard(format, known: dict[int, int]):
    assert {code: struct.unpack("<h", to_pcm(bytes([code]), format))[0] for code in known} == known


async def test_an_error_names_its_event_where_text_was_cut_within_a_character(caller: Caller):
    cut = r'{"type": "session.update", "session": {"type": "realtime", "instructions": "\ud83d"}, "event_id": "mine"}'
    await caller.socket.send(cut)
    error = (await caller.until("error"))[-1]["error"]

    assert (error["event_id"], error["code"]) == ("mine", "bad_request")
    assert "surrogate pair" in error["message"]
