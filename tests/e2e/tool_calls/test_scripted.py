"""The documented example of scripted answers, as the official client meets it: tools that a model decides to call."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.system import ROOT, System, start_system
from tests.e2e.tool_calls.test_tools import collect_stream

pytestmark = pytest.mark.e2e

EXAMPLE = ROOT / "examples/scripted"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]


@pytest.fixture(scope="module")
def scripted_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    models = json.loads((EXAMPLE / "models.json").read_text())["models"]
    models["assistant"]["checkpoint"] = str(EXAMPLE / models["assistant"]["checkpoint"])
    directory = tmp_path_factory.mktemp("scripted")
    models["slow"] = {**models["assistant"], "checkpoint": write_slow(directory / "slow.json")}
    models["halves"] = write_halves(directory / "halves.json")
    with start_system(directory, models) as new_system:
        yield new_system


def read_slow_thinker() -> dict[str, Any]:
    """Return the example's answers with slower tokens: those that wait for a busy gateway are one piece."""
    thinker: dict[str, Any] = json.loads((EXAMPLE / "answers.json").read_text())["default"]["components"]["thinker"]
    return {**thinker, "step": {"base": 10 * thinker["step"]["base"]}}


def write_slow(profile: Path) -> str:
    """Write answers of the whole model to ``profile``, and return its path."""
    profile.write_text(json.dumps({"default": {"components": {"thinker": read_slow_thinker()}}}))
    return str(profile)


def write_halves(profile: Path) -> dict[str, Any]:
    """Declare the model in two halves, and write answers to ``profile``."""
    thinker = read_slow_thinker()
    decode = {name: thinker.pop(name) for name in ("step", "steps")}
    profile.write_text(json.dumps({"default": {"components": {"prefill": thinker, "decode": decode}}}))
    options = {
        name: {"components": [part], "service": "llm", "engine": "omnibus_engines:sim"}
        for name, part in (("P", "prefill"), ("D", "decode"))
    }
    paths = [{"options": ["P", "D"]}]
    return {"family": "qwen3", "checkpoint": str(profile), "components": ["prefill", "decode"], "options": options, "paths": paths}  # fmt: skip


@pytest.fixture
async def assistant(scripted_system: System) -> AsyncIterator[openai.AsyncOpenAI]:
    await scripted_system.becomes_ready()
    async with openai.AsyncOpenAI(
        base_url=f"{scripted_system.url}/v1",
        api_key="none",
        max_retries=0,
        timeout=60,
        _strict_response_validation=True,
    ) as new_client:
        yield new_client


def make_body(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "assistant", "messages": [{"role": "user", "content": text}], **more}


def test_the_page_shows_the_example() -> None:
    page = (ROOT / "docs/engines.md").read_text()

    assert f"<!-- examples/scripted/answers.json -->\n```json\n{(EXAMPLE / 'answers.json').read_text()}```" in page


@pytest.mark.parametrize("model", ["assistant", "halves"])
async def test_a_model_decides_to_call_a_tool_and_goes_on_with_its_result(
    assistant: openai.AsyncOpenAI, model: str
) -> None:
    question = {**make_body("What is the weather in Paris?", tools=TOOLS), "model": model}
    answer = await assistant.chat.completions.create(**question)
    message = answer.choices[0].message
    [call] = message.tool_calls or []

    assert (message.content, answer.choices[0].finish_reason) == ("Let me see.", "tool_calls")
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Paris", "days": 2})
    for result, expected_text in (("heavy rain", "Take an umbrella."), ("sun", "It stays dry.")):
        result_message = {"role": "tool", "tool_call_id": call.id, "content": result}
        messages = [*question["messages"], message.model_dump(exclude_none=True), result_message]
        again = await assistant.chat.completions.create(**{**question, "messages": messages})
        assert (again.choices[0].message.content, again.choices[0].finish_reason) == (expected_text, "stop")


@pytest.mark.parametrize("model", ["slow", "halves"])
async def test_streamed_calls_come_in_pieces_of_their_arguments(assistant: openai.AsyncOpenAI, model: str) -> None:
    question = {**make_body("weather in Paris", tools=TOOLS, stream=True), "model": model}
    stream = await assistant.chat.completions.create(**question)
    chunks = [chunk async for chunk in stream]

    deltas = [call for chunk in chunks for each in chunk.choices for call in each.delta.tool_calls or []]
    assert len(deltas) > 5  # token by token
    assert [each.function.name for each in deltas if each.function.name] == ["weather"]
    assert json.loads("".join(each.function.arguments or "" for each in deltas)) == {"city": "Paris", "days": 2}
    text = "".join(each.delta.content or "" for chunk in chunks for each in chunk.choices)
    assert (text, chunks[-1].choices[0].finish_reason) == ("Let me see.", "tool_calls")


async def test_two_calls_come_at_once_and_each_choice_has_its_own(assistant: openai.AsyncOpenAI) -> None:
    body = make_body("compare both cities", tools=TOOLS)

    calls, text, finish = await collect_stream(await assistant.chat.completions.create(**body, stream=True))
    several = await assistant.chat.completions.create(**body, n=3)

    assert [json.loads(arguments) for _, _, arguments in calls.values()] == [{"city": "Paris"}, {"city": "Rome"}]
    assert (text, finish) == ("", "tool_calls")
    assert [len(choice.message.tool_calls or []) for choice in several.choices] == [2, 2, 2]
    ids = [call.id for choice in several.choices for call in choice.message.tool_calls or []]
    assert len({*ids}) == 6


async def test_the_request_says_what_may_be_answered(assistant: openai.AsyncOpenAI) -> None:
    weather = "weather in Paris"
    forced_answer, none, untold = await asyncio.gather(
        assistant.chat.completions.create(**make_body(weather, tools=TOOLS, tool_choice="required")),
        assistant.chat.completions.create(**make_body(weather, tools=TOOLS, tool_choice="none")),
        assistant.chat.completions.create(**make_body("what no rule knows")),
    )

    assert forced_answer.choices[0].message.tool_calls
    assert none.choices[0].message.tool_calls is None
    assert len((untold.choices[0].message.content or "").split()) == 12
    with pytest.raises(openai.BadRequestError, match="no scripted answer to this message calls a tool") as caught:
        await assistant.chat.completions.create(**make_body("hello", tools=TOOLS, tool_choice="required"))
    assert caught.value.param == "tool_choice"


async def test_long_tools_and_reasoning_go_the_same_way(assistant: openai.AsyncOpenAI) -> None:
    """Parameters that are too long for a message travel by handle."""
    long = {"type": "function", "function": {"name": "long", "description": "x" * 60_000}}
    call_answer = await assistant.chat.completions.create(**make_body("weather in Paris", tools=[*TOOLS, long]))
    thought = await assistant.chat.completions.create(**make_body("think about it"))

    assert call_answer.choices[0].message.tool_calls
    assert thought.choices[0].message.content == "Four."
    assert thought.choices[0].message.model_extra == {"reasoning_content": "Two and two."}


async def test_responses_have_the_same_calls(assistant: openai.AsyncOpenAI) -> None:
    tool: Any = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}

    response = await assistant.responses.create(model="assistant", input="weather in Paris", tools=[tool])

    [call] = [each for each in response.output if each.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Paris", "days": 2})
