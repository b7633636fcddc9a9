"""Client events by number, valid and invalid, and unordered session operations."""

import base64
from typing import Any

from hypothesis import strategies as st

from tests.unit.gateway.realtime_account import Event

MESSAGE = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one two three"}]}
CLIP = bytes(range(1, 241)) * 4
SPOKEN = {"type": "input_audio", "audio": base64.b64encode(CLIP).decode()}
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
ITEMS: list[Event] = [
    MESSAGE,
    {"type": "message", "role": "user", "content": [SPOKEN]},
    {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "be brief"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_audio", "transcript": "as I said"}]},
    {"type": "message", "role": "user", "content": [PICTURE]},  # without an image
    {"type": "function_call", "name": "weather", "arguments": "{}", "call_id": "call_1"},
    {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
]


def _build_input(**changes: Any) -> Event:
    return {"audio": {"input": changes}}


SHORT_VAD = {"type": "server_vad", "silence_duration_ms": 60}
#: Valid changes of a session, except the last: a voice is fixed once it has spoken.
UPDATES: list[Event] = [
    _build_input(turn_detection=None),
    _build_input(turn_detection=SHORT_VAD),
    _build_input(turn_detection={**SHORT_VAD, "interrupt_response": False}),
    _build_input(turn_detection={"type": "semantic_vad", "create_response": False}),
    _build_input(format={"type": "audio/pcmu"}),
    _build_input(format={"type": "audio/pcm", "rate": 24000}),
    _build_input(transcription={"model": "whisper-1"}),
    _build_input(transcription=None),
    {"output_modalities": ["text"]},
    {"output_modalities": ["audio"], "instructions": "Be brief."},
    {"tools": [TOOL], "instructions": ""},
    {"audio": {"output": {"voice": "shimmer"}}},
]
#: Options of a response, and their error codes in any conversation.
RESPONSES: list[tuple[Any, str]] = [
    ({}, ""),
    ({"conversation": "none"}, ""),
    ({"conversation": "none", "input": [MESSAGE], "output_modalities": ["text"]}, ""),
    ({"input": [MESSAGE], "max_output_tokens": 3}, ""),
    ({"input": [{"type": "item_reference", "id": "nobody"}]}, "not_found"),
    ({"input": [{"type": "x"}]}, "bad_request"),
    ({"input": [MESSAGE], "tools": [TOOL], "output_modalities": ["text"]}, ""),
    ({"input": [MESSAGE], "tools": [TOOL], "tool_choice": {"type": "function", "name": "no"}}, "bad_request"),
    (None, ""),
]
#: Invalid frames, with ``ID`` in place of their event's id.
BROKEN = [
    '{"type": "input_audio_buffer.append", "audio": "@", "event_id": "ID"}',
    '{"type": "input_audio_buffer.append", "event_id": "ID"}',
    '{"type": "session.close", "event_id": "ID"}',
    '{"type": "output_audio_buffer.clear", "event_id": "ID"}',
    '{"type": "session.update", "session": {"type": "realtime", "model": "other"}, "event_id": "ID"}',
    '{"type": "session.update", "session": {"type": "transcription"}, "event_id": "ID"}',
    '{"type": "session.update", "session": {"type": "realtime", "audio": {"output": {"speed": 9}}}, "event_id": "ID"}',
    '{"type": "session.update", "session": null, "event_id": "ID"}',
    '{"type": "conversation.item.truncate", "item_id": "a", "content_index": -1, "audio_end_ms": 1, "event_id": "ID"}',
    '{"type": "conversation.item.truncate", "item_id": "a", "content_index": 0, "audio_end_ms": 1e99, "event_id": "ID"}',
    '{"type": "conversation.item.delete", "item_id": "", "event_id": "ID"}',
    '{"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": []}, "event_id": "ID"}',
    '{"type": "response.create", "response": {"metadata": {"a": 1}}, "event_id": "ID"}',
    '{"type": "response.create", "response": {"input": 7}, "event_id": "ID"}',
    '{"type": "response.cancel", "response_id": [], "event_id": "ID"}',
    '{"type": "response.create", "response": {"instructions": "cut \\ud83d"}, "event_id": "ID"}',
    '{"event_id": "ID"}',
    '{"type": 5}',
    "[" * 5000,
    "nothing",
    "",
    "null",
    '"\\ud800"',
]
_PLACE = st.integers(0, 9)  # of an item; those after the last are unknown
OPERATIONS = st.one_of(
    st.tuples(st.just("append"), st.sampled_from(["loud", "loud", "quiet", "odd"]), st.sampled_from([20, 100, 400])),
    st.tuples(st.just("talk"), st.booleans()),
    st.tuples(st.just("pause"), st.sampled_from([0, 2, 20]), st.booleans()),
    st.tuples(st.sampled_from(["commit", "commit", "clear", "resume"])),
    st.tuples(st.just("create"), st.sampled_from(range(len(ITEMS))), st.sampled_from([None, "a", "b"]), _PLACE),
    st.tuples(st.sampled_from(["retrieve", "delete"]), _PLACE),
    st.tuples(st.just("truncate"), _PLACE, st.integers(0, 1), st.sampled_from([0, 7, 25, 10_000])),
    st.tuples(st.just("respond"), st.sampled_from(range(len(RESPONSES)))),
    st.tuples(st.just("respond"), st.just(0)),
    st.tuples(st.just("cancel"), st.sampled_from(["", "", "nobody", "last"])),
    st.tuples(st.just("update"), st.sampled_from(range(len(UPDATES)))),
    st.tuples(st.just("broken"), st.sampled_from(range(len(BROKEN)))),
    st.tuples(st.just("wait"), st.sampled_from([1, 5, 1000])),
)
