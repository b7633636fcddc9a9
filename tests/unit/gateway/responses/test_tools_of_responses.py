"""Function tools, reasoning and structured output of responses: the model's input, and the items of its answer."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from omnibus.executor.runner import Job
from omnibus.store import Store
from omnibus.structured.calls import call_head
from tests.unit.gateway.house import TEXT, ToyGateway, start_toy_gateway
from tests.unit.gateway.responses_house import events_of, post_response, read_response_body

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}


class ToolCallingThinker:
    """A thinker with reasoning, text and two function calls; it records its input."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.params: dict[str, Any] = {}

    async def __call__(self, job: Job) -> None:
        self.messages, self.params = await job.value("messages"), job.inputs["params"]
        await job.send("text", {"reasoning": "let me ", "ids": [1]})
        await job.send("text", {"reasoning": "see", "ids": [2]})
        await job.send("text", {"text": "I look.", "ids": [3]})
        await job.send("text", {"calls": call_head("weather") + '{"city":', "ids": [4]})
        await job.send("text", {"calls": '"Rome"}' + call_head("weather") + '{"city":"Bonn"}', "ids": [5]})
        usage = {"prompt_tokens": 5, "completion_tokens": 5, "reasoning_tokens": 2}
        job.close("text", {"finish_reason": "stop", "usage": usage})


@pytest.fixture
def caller() -> ToolCallingThinker:
    return ToolCallingThinker()


@pytest.fixture
async def tool_gateway(tmp_path: Path, store: Store, caller: ToolCallingThinker) -> AsyncIterator[ToyGateway]:
    async with start_toy_gateway(tmp_path, store) as gateway:
        gateway.serve(TEXT)
        assert gateway.router.plan is not None
        for option, spec in gateway.router.plan.models[TEXT].options.items():
            await gateway.executor(TEXT, option, *spec.components, thinker=caller)
        yield gateway


async def test_an_answer_has_reasoning_text_and_calls_as_items(tool_gateway: ToyGateway, caller: ToolCallingThinker):
    response = read_response_body(
        await post_response(tool_gateway, tools=[WEATHER], include=["reasoning.encrypted_content"])
    )

    thoughts, message, rome, bonn = response["output"]
    assert thoughts["content"] == [{"type": "reasoning_text", "text": "let me see"}]
    assert thoughts["encrypted_content"]
    assert message["content"][0]["text"] == "I look."
    assert [rome["name"], rome["arguments"], rome["status"]] == ["weather", '{"city":"Rome"}', "completed"]
    assert bonn["arguments"] == '{"city":"Bonn"}'
    assert rome["call_id"] != bonn["call_id"]
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 2
    assert response["tools"] == [{**WEATHER, "description": None}]
    assert caller.params["tools"][0]["function"]["name"] == "weather"


async def test_calls_are_streamed_in_order(tool_gateway: ToyGateway):
    events = events_of((await post_response(tool_gateway, tools=[WEATHER], stream=True)).text)

    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    added_items = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [item["type"] for item in added_items] == ["reasoning", "message", "function_call", "function_call"]
    assert added_items[2]["arguments"] == ""


async def test_what_calls_gave_goes_back_to_the_model(tool_gateway: ToyGateway, caller: ToolCallingThinker):
    first = read_response_body(await post_response(tool_gateway, "how is it?", tools=[WEATHER]))
    calls = [item for item in first["output"] if item["type"] == "function_call"]
    results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"} for call in calls]

    read_response_body(await post_response(tool_gateway, results, previous_response_id=first["id"], tools=[WEATHER]))
    by_state = caller.messages
    read_response_body(
        await post_response(
            tool_gateway, [{"role": "user", "content": "how is it?"}, *first["output"], *results], store=False
        )
    )

    user, assistant, *tools = by_state
    assert user == {"role": "user", "content": [{"type": "text", "text": "how is it?"}]}
    assert assistant["content"] == "I look."
    assert assistant["reasoning_content"] == "let me see"
    assert [call["function"]["arguments"] for call in assistant["tool_calls"]] == [{"city": "Rome"}, {"city": "Bonn"}]
    assert [tool["content"] for tool in tools] == ["sunny", "sunny"]
    assert caller.messages[1:] == by_state[1:]  # without a store it is the same


async def test_the_choice_of_tools_and_the_shape_of_texts_are_passed_on(
    tool_gateway: ToyGateway, caller: ToolCallingThinker
):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    format = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}

    response = read_response_body(await post_response(tool_gateway, text={"format": format}))
    assert caller.params["structured_outputs"] == {"json": schema}
    assert response["text"]["format"]["schema"] == schema
    read_response_body(
        await post_response(tool_gateway, tools=[WEATHER], tool_choice={"type": "function", "name": "weather"})
    )
    assert caller.params["tool_choice"] == "required"
    allowed_tools = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]}
    response = read_response_body(
        await post_response(tool_gateway, tools=[WEATHER], tool_choice=allowed_tools, parallel_tool_calls=False)
    )
    assert response["tool_choice"] == allowed_tools
    assert caller.params["parallel_tool_calls"] is False
