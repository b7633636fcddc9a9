"""Answers with reasoning, calls and stop sequences; choices of tools and other options."""

from typing import Any

import pytest

from omnibus.structured.calls import call_head
from tests.unit.gateway.anthropic.conftest import Opener
from tests.unit.gateway.anthropic.house import post_message, read_deltas, read_message, read_message_events
from tests.unit.gateway.anthropic.thinkers import RecordingThinker
from tests.unit.gateway.house import ToyGateway

WEATHER = {"name": "weather", "description": "The weather.", "input_schema": {"type": "object"}, "type": "custom"}


async def test_an_answer_has_reasoning_text_and_calls_as_blocks(tool_gateway: ToyGateway, caller: RecordingThinker):
    message = read_message(await post_message(tool_gateway, tools=[WEATHER]))

    thoughts, words, rome, bonn = message["content"]
    assert thoughts == {"type": "thinking", "thinking": "let me see", "signature": ""}
    assert (words["type"], words["text"]) == ("text", "I look.")
    assert (rome["type"], rome["name"], rome["input"]) == ("tool_use", "weather", {"city": "Rome"})
    assert bonn["input"] == {"city": "Bonn"}
    assert rome["id"] != bonn["id"]
    assert rome["id"].startswith("toolu_")
    assert message["stop_reason"] == "tool_use"
    assert message["usage"] == {
        "input_tokens": 4, "output_tokens": 5, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 0,
        "output_tokens_details": {"thinking_tokens": 2},
    }  # fmt: skip
    assert caller.params["tools"][0]["function"] == {
        "name": "weather", "description": "The weather.", "parameters": {"type": "object"},
    }  # fmt: skip


async def test_blocks_are_streamed_one_after_another(tool_gateway: ToyGateway):
    events = read_message_events((await post_message(tool_gateway, tools=[WEATHER], stream=True)).text)

    steps = [(event["type"].removeprefix("content_block_"), event.get("index")) for event in events]
    assert steps == [
        ("message_start", None),
        ("start", 0), ("delta", 0), ("delta", 0), ("delta", 0), ("stop", 0),
        ("start", 1), ("delta", 1), ("stop", 1),
        ("start", 2), ("delta", 2), ("delta", 2), ("stop", 2),
        ("start", 3), ("delta", 3), ("stop", 3),
        ("message_delta", None), ("message_stop", None),
    ]  # fmt: skip
    kinds = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert kinds == [
        "thinking_delta", "thinking_delta", "signature_delta", "text_delta", *["input_json_delta"] * 3,
    ]  # fmt: skip
    blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use", "tool_use"]
    assert blocks[2]["input"] == {}
    assert read_deltas(events, "thinking") == "let me see"
    assert read_deltas(events, "partial_json") == '{"city":"Rome"}{"city":"Bonn"}'
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[-2]["usage"]["cache_read_input_tokens"] == 3


async def test_a_stream_has_the_same_calls_as_a_message(tool_gateway: ToyGateway):
    message = read_message(await post_message(tool_gateway, tools=[WEATHER]))
    events = read_message_events((await post_message(tool_gateway, tools=[WEATHER], stream=True)).text)

    streamed = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert [block["type"] for block in message["content"]] == [block["type"] for block in streamed]


async def test_hidden_reasoning_has_only_a_signature_in_a_stream(tool_gateway: ToyGateway):
    thinking = {"type": "enabled", "budget_tokens": 1024, "display": "omitted"}
    events = read_message_events((await post_message(tool_gateway, thinking=thinking, stream=True)).text)

    assert read_deltas(events, "thinking") == ""
    assert read_deltas(events, "signature")


@pytest.mark.parametrize(
    ("choice", "params"),
    [
        ({"type": "auto"}, {"tool_choice": "auto", "parallel_tool_calls": True}),
        ({"type": "auto", "disable_parallel_tool_use": True}, {"tool_choice": "auto", "parallel_tool_calls": False}),
        ({"type": "any"}, {"tool_choice": "required", "parallel_tool_calls": True}),
        ({"type": "tool", "name": "weather"}, {"tool_choice": "required", "allowed_tools": ["weather"]}),
        ({"type": "none"}, {}),
    ],
)
async def test_the_choice_of_tools_is_passed_on(
    tool_gateway: ToyGateway, caller: RecordingThinker, choice: dict[str, Any], params: dict[str, Any]
):
    read_message(await post_message(tool_gateway, tools=[WEATHER], tool_choice=choice))

    assert params.items() <= caller.params.items()
    assert ("tools" in caller.params) == bool(params)


async def test_sampling_is_passed_on(tool_gateway: ToyGateway, caller: RecordingThinker):
    read_message(await post_message(tool_gateway, temperature=0.5, top_p=0.9, top_k=3, stop_sequences=["END"]))

    sent = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "stop": ["END"], "max_tokens": 100}
    assert sent.items() <= caller.params.items()


@pytest.mark.parametrize(
    ("options", "template"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"enable_thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}),
        ({"thinking": {"type": "adaptive"}}, None),
        ({"output_config": {"effort": "max"}}, {"reasoning_effort": "xhigh", "reasoning_effort_hint": True}),
        (
            {"output_config": {"effort": "low"}, "thinking": {"type": "enabled", "budget_tokens": 1024}},
            {"reasoning_effort": "low", "reasoning_effort_hint": True, "enable_thinking": True},
        ),
    ],
)
async def test_reasoning_is_an_option_of_the_template(
    tool_gateway: ToyGateway, caller: RecordingThinker, options: dict[str, Any], template: dict[str, Any] | None
):
    read_message(await post_message(tool_gateway, **options))

    assert caller.params.get("template") == template


async def test_a_schema_constrains_the_answer(tool_gateway: ToyGateway, caller: RecordingThinker):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    read_message(await post_message(tool_gateway, output_config={"format": {"type": "json_schema", "schema": schema}}))

    assert caller.params["structured_outputs"] == {"json": schema}


#: Chunks of an answer, its stop sequences, and the text and the sequence that the client receives.
STOPS = [
    (["one E", "ND"], ["END"], "one ", "END"),
    (["one END"], ["x", "END"], "one ", "END"),
    (["one ", "E", "N"], ["END"], "one EN", None),
    (["EN", "D"], ["END"], "", "END"),
    (["E", "one ", "END"], ["END"], "Eone ", "END"),
    (["one END"], [], "one END", None),
]


@pytest.mark.parametrize(("chunks", "stops", "words", "stop"), STOPS)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_stop_sequence_is_named_and_not_part_of_the_text(
    open_gateway: Opener, chunks: list[str], stops: list[str], words: str, stop: str | None, stream: bool
):
    thinker = RecordingThinker(*({"text": chunk} for chunk in chunks))
    async with open_gateway(thinker) as gateway:
        response = await post_message(gateway, stop_sequences=stops, stream=stream)

    end: dict[str, Any]
    if stream:
        events = read_message_events(response.text)
        answer, end = read_deltas(events, "text"), events[-2]["delta"]
    else:
        end = read_message(response)
        answer = "".join(block["text"] for block in end["content"])
    assert (answer, end["stop_sequence"]) == (words, stop)
    assert end["stop_reason"] == ("stop_sequence" if stop else "end_turn")


async def test_text_after_reasoning_may_begin_with_a_stop_sequence(open_gateway: Opener):
    chunks = [{"reasoning": "hm"}, {"text": "E"}, {"text": "very"}, {"text": "E"}, {"calls": call_head("f") + "{}"}]
    async with open_gateway(RecordingThinker(*chunks)) as gateway:
        events = read_message_events((await post_message(gateway, stop_sequences=["END"], stream=True)).text)

    assert read_deltas(events, "text") == "EveryE"
    starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert starts == ["thinking", "text", "tool_use"]


async def test_a_cut_answer_says_so(open_gateway: Opener):
    thinker = RecordingThinker({"text": "I"}, {"calls": call_head("weather") + '{"city":'}, finish="length")
    async with open_gateway(thinker) as gateway:
        message = read_message(await post_message(gateway, tools=[WEATHER]))

    assert message["stop_reason"] == "max_tokens"
    assert message["content"][1]["input"] == {}
