"""Talk to a gateway with the ``anthropic`` client, which checks each field of an answer."""

import asyncio
from typing import Any

import anthropic
import pytest

MODEL, SCRIPTED = "qwen2.5-omni-world", "assistant"
PLACES = ["San Francisco, CA", "Rome"]
CITY = {
    "type": "object",
    "properties": {"location": {"enum": PLACES}},
    "required": ["location"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [{"name": "get_weather", "description": "The weather of a place.", "input_schema": CITY}]
QUESTION: Any = [{"role": "user", "content": "What is the weather in San Francisco?"}]

client = anthropic.Anthropic(max_retries=0, _strict_response_validation=True)


def stream_call() -> None:
    """Check the events of a streamed call of a tool, and continue after its result."""
    with client.messages.stream(model=SCRIPTED, max_tokens=64, messages=QUESTION, tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert {"content_block_start", "input_json", "content_block_stop", "message_delta"} <= set(kinds)
    call = message.content[-1]
    assert call.type == "tool_use"
    assert call.input == {"location": PLACES[0]}
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "18 degrees"}]}
    talk = [*QUESTION, message.to_param(), {"role": "user", "content": [result]}]
    answer = client.messages.create(model=SCRIPTED, max_tokens=64, messages=talk, tools=TOOLS)
    assert answer.stop_reason == "end_turn"
    assert answer.usage.input_tokens > 0


def force_call() -> None:
    """Check that a forced call satisfies its schema."""
    message = client.messages.create(
        model=MODEL,
        max_tokens=100,
        messages=[{"role": "user", "content": "a city"}],
        tools=TOOLS,
        tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True},
    )
    [call] = message.content
    assert call.type == "tool_use"
    assert call.input["location"] in PLACES


def cut_answer() -> None:
    """Check the reason of an answer that its limit cuts, and its system prompt and thinking options."""
    message = client.messages.create(
        model=MODEL,
        max_tokens=1,
        system=[{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}],
        messages=[{"role": "user", "content": "hello"}],
        thinking={"type": "adaptive"},
        metadata={"user_id": "a"},
        extra_body={"temperature": 0.0, "top_k": 5},
    )
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 1
    assert message._request_id


def refuse() -> None:
    """Check that errors have the classes of the client, with and without a stream."""
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.messages.create(model="nobody", max_tokens=1, messages=QUESTION)
    assert unknown.value.type == "not_found_error"
    assert unknown.value.request_id
    search: Any = {"type": "web_search_20250305", "name": "web_search"}
    with pytest.raises(anthropic.BadRequestError, match="of type 'web_search_20250305' are not supported"):
        client.messages.create(model=MODEL, max_tokens=1, messages=QUESTION, tools=[search], stream=True)


async def leave_stream() -> None:
    """Check that a stream can be left, and that the next request is answered."""
    async with anthropic.AsyncAnthropic(max_retries=0) as patient:
        stream = await patient.messages.create(
            model=MODEL, max_tokens=200, messages=[{"role": "user", "content": "hello"}], stream=True
        )
        async for event in stream:
            if event.type == "content_block_delta":
                break
        await stream.close()
        count = await patient.messages.count_tokens(model=MODEL, messages=QUESTION, tools=TOOLS)
        assert count.input_tokens > 0


if __name__ == "__main__":
    stream_call()
    force_call()
    cut_answer()
    refuse()
    asyncio.run(leave_stream())
