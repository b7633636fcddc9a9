"""Messages of ``/v1/messages``: complete, and as the events of a stream."""

from typing import Any

import pytest

from tests.unit.gateway.anthropic.house import (
    PATH,
    build_message_body,
    post_message,
    read_deltas,
    read_message,
    read_message_events,
)
from tests.unit.gateway.house import TEXT, ToyGateway


@pytest.mark.usefixtures("either_way")
async def test_a_message_has_text_usage_and_a_reason(home: ToyGateway):
    response = await post_message(
        home, "hello there", system="Be kind.", service_tier="auto", metadata={"user_id": "u"}
    )

    message = read_message(response)
    assert message["id"].startswith("msg_")
    assert [message[name] for name in ("type", "role", "model")] == ["message", "assistant", TEXT]
    [block] = message["content"]
    assert block["type"] == "text"
    assert block["text"].startswith("You said hello there [")
    assert [message["stop_reason"], message["stop_sequence"]] == ["end_turn", None]
    assert message["usage"] == {
        "input_tokens": 5, "output_tokens": 5, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0,
    }  # fmt: skip
    assert response.headers["request-id"] == response.headers["x-request-id"]
    await home.emptied()


@pytest.mark.usefixtures("either_way")
async def test_a_stream_has_its_events_in_order(home: ToyGateway):
    response = await post_message(home, "hello there", stream=True)

    assert response.headers["content-type"].startswith("text/event-stream")
    events = read_message_events(response.text)
    kinds = [event["type"] for event in events]
    assert kinds == [
        "message_start", "content_block_start", *["content_block_delta"] * 5, "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip
    start = events[0]["message"]
    assert start["id"].startswith("msg_")
    assert (start["content"], start["stop_reason"], start["role"]) == ([], None, "assistant")
    assert events[1] == {
        "type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "", "citations": None},
    }  # fmt: skip
    assert read_deltas(events, "text").startswith("You said hello there [")
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 5
    assert events[-2]["usage"]["input_tokens"] == 5
    await home.emptied()


#: Fields and headers that agents send, and that change nothing here.
IGNORED: dict[str, Any] = {
    "cache_control": {"type": "ephemeral"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "diagnostics": {"previous_message_id": None},
    "inference_geo": "eu",
    "service_tier": "standard_only",
    "speed": "fast",
    "thinking": {"type": "between_tools"},
    "tools": [],
}


@pytest.mark.parametrize("name", IGNORED)
async def test_fields_without_effect_are_accepted(home: ToyGateway, name: str):
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "context-management-2025-06-27"}
    body = build_message_body(**{name: IGNORED[name]})
    response = await home.http.post(f"{PATH}?beta=true", json=body, headers=headers)

    assert read_message(response)["stop_reason"] == "end_turn"
