"""Tools and schemas through the official client, with its strict checks.

A tiny model cannot decide to call a tool, so grammar masks force the calls.
``tests/unit/llm/runners/test_shaped_answers.py`` covers calls without masks.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pydantic
import pytest

from omnibus.families import catalog
from omnibus_models import tiny
from tests.e2e.questions import make_audio, make_image, make_question
from tests.e2e.system import OMNI, System, declare_model, start_system

pytestmark = pytest.mark.e2e

TEXT, HALVES = "qwen3-tiny", "qwen3-halves"
MODELS = (TEXT, HALVES)


@pytest.fixture(scope="package")
def system(tmp_path_factory: pytest.TempPathFactory, omni_checkpoint: Path) -> Iterator[System]:
    checkpoint = str(tiny.build("qwen3", tmp_path_factory.mktemp("checkpoints") / "qwen3"))
    models = {
        TEXT: catalog.model_declaration("qwen3", checkpoint),
        HALVES: catalog.split_declaration("qwen3", checkpoint, "P>D"),
        OMNI: declare_model("qwen2_5_omni", omni_checkpoint),
    }
    with start_system(
        tmp_path_factory.mktemp("tools"), models, "--gateways", "2", OMNIBUS_GATEWAY_CONTINUE_STREAMS="requested"
    ) as new_system:
        yield new_system


@pytest.fixture
async def client(system: System) -> AsyncIterator[openai.AsyncOpenAI]:
    await system.becomes_ready()
    async with openai.AsyncOpenAI(
        base_url=f"{system.urls[0]}/v1",
        api_key="none",
        max_retries=0,
        timeout=120,
        _strict_response_validation=True,
    ) as new_client:
        yield new_client


def make_order_tool(number: int) -> dict[str, Any]:
    """A tool that can be called in one way."""
    schema = {
        "type": "object",
        "properties": {"id": {"const": f"order {number}"}, "fast": {"type": "boolean"}},
        "required": ["id", "fast"],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": f"order_{number}", "parameters": schema}}


def make_body(model: str, number: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": "hello"}],
        "tools": [make_order_tool(number)],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": 120,
        "seed": number,
        **more,
    }


async def collect_stream(stream: Any) -> tuple[dict[int, list[str]], str, str | None]:
    """Calls by index (id, name, arguments), the text, and the finish reason."""
    calls: dict[int, list[str]] = {}
    text, finish = "", None
    async for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                if call.id:
                    calls[call.index] = [call.id, call.function.name, ""]
                calls[call.index][2] += call.function.arguments or ""
    return calls, text, finish


@pytest.mark.parametrize("model", MODELS)
async def test_thirty_two_at_once_get_each_its_own_call(client: openai.AsyncOpenAI, model: str) -> None:
    async def send_call(number: int) -> tuple[str, str, str | None]:
        if number % 2:
            stream = await client.chat.completions.create(**make_body(model, number), stream=True)
            calls, text, finish = await collect_stream(stream)
            [(_, name, arguments)] = calls.values()
            assert text == ""
            return name, arguments, finish
        answer = await client.chat.completions.create(**make_body(model, number))
        [tool_call] = answer.choices[0].message.tool_calls or []
        assert answer.choices[0].message.content is None
        return tool_call.function.name, tool_call.function.arguments, answer.choices[0].finish_reason

    results = await asyncio.gather(*map(send_call, range(32)))

    for number, (name, arguments, finish) in enumerate(results):
        assert (name, finish) == (f"order_{number}", "tool_calls")
        assert json.loads(arguments)["id"] == f"order {number}"


async def test_a_call_and_its_result_go_back_as_the_client_got_them(client: openai.AsyncOpenAI) -> None:
    first = make_body(
        TEXT,
        tools=[make_order_tool(1), make_order_tool(2)],
        tool_choice={"type": "function", "function": {"name": "order_2"}},
    )
    answer = await client.chat.completions.create(**first)
    message = answer.choices[0].message
    [call] = message.tool_calls or []
    assert call.function.name == "order_2"

    again = await client.chat.completions.create(
        model=TEXT,
        messages=[
            *first["messages"],
            message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "done"},
        ],
        tools=first["tools"],
        max_tokens=8,
    )

    assert again.usage.prompt_tokens > answer.usage.prompt_tokens
    with pytest.raises(openai.BadRequestError, match="Unknown tool_call_id") as caught:
        await client.chat.completions.create(
            model=TEXT, messages=[{"role": "tool", "tool_call_id": "call_x", "content": "done"}], max_tokens=8
        )
    assert caught.value.param == "messages[0].tool_call_id"


class CityAnswer(pydantic.BaseModel):
    """Answer format that a client defines as a class."""

    model_config = {"extra": "forbid"}

    name: str = pydantic.Field(max_length=10)
    people: int = pydantic.Field(ge=0, le=999)


@pytest.mark.parametrize("model", MODELS)
async def test_parse_gives_objects(client: openai.AsyncOpenAI, model: str) -> None:
    answer = await client.chat.completions.parse(
        model=model,
        messages=[{"role": "user", "content": "a city"}],
        response_format=CityAnswer,
        max_tokens=100,
        seed=3,
    )

    assert isinstance(answer.choices[0].message.parsed, CityAnswer)
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("model", MODELS)
async def test_a_schema_that_is_too_long_for_the_bus_is_obeyed(client: openai.AsyncOpenAI, model: str) -> None:
    words = [f"word {number:05}" for number in range(2500)]
    shape = {"type": "json_schema", "json_schema": {"name": "word", "schema": {"enum": words}}}
    assert len(json.dumps(shape)) > 32 * 1024

    answer = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "a word"}], response_format=shape, max_tokens=40
    )

    assert json.loads(answer.choices[0].message.content) in words


async def test_probabilities_come_with_the_tokens(client: openai.AsyncOpenAI) -> None:
    plain: dict[str, Any] = {
        "model": TEXT,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 6,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 2,
    }

    answer = await client.chat.completions.create(**plain)
    stream = await client.chat.completions.create(**plain, stream=True)
    stream_tokens = [
        each
        async for chunk in stream
        for choice in chunk.choices
        for each in ((choice.logprobs and choice.logprobs.content) or [])
    ]

    tokens = answer.choices[0].logprobs.content
    assert "".join(each.token for each in tokens) == answer.choices[0].message.content
    assert all(len(each.top_logprobs) == 2 and each.logprob == each.top_logprobs[0].logprob for each in tokens)
    assert [(each.token, round(each.logprob, 3)) for each in stream_tokens] == [
        (each.token, round(each.logprob, 3)) for each in tokens
    ]


async def test_an_image_and_sound_come_in_and_a_call_goes_out_without_speech(client: openai.AsyncOpenAI) -> None:
    question = make_question("what is this", make_image(1), make_audio(0.5))
    more: dict[str, Any] = {"messages": question.messages, "max_tokens": 200}

    answer = await client.chat.completions.create(**make_body(OMNI, **more))
    spoken_answer = await client.chat.completions.create(
        **make_body(OMNI, **more), modalities=["text", "audio"], audio={"voice": "Chelsie", "format": "wav"}
    )

    for each in (answer, spoken_answer):
        [call] = each.choices[0].message.tool_calls or []
        assert json.loads(call.function.arguments)["id"] == "order 1"
    assert spoken_answer.choices[0].message.audio is not None
    assert spoken_answer.choices[0].message.audio.transcript == ""


async def test_hostile_schemas_are_the_clients_fault(client: openai.AsyncOpenAI) -> None:
    slow = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(4000)}}
    for schema in (slow, {"type": "string", "pattern": "(?=a)"}, {"$ref": "http://127.0.0.1/x"}):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(
                model=TEXT,
                messages=[{"role": "user", "content": "hello"}],
                response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
            )
        assert caught.value.param == "response_format.json_schema.schema"


async def test_a_streamed_call_goes_on_at_another_gateway(system: System, client: openai.AsyncOpenAI) -> None:
    whole, _, _ = await collect_stream(
        await client.chat.completions.create(**make_body(HALVES, temperature=1.0), stream=True)
    )
    [(_, name, arguments)] = whole.values()

    body = {**make_body(HALVES, temperature=1.0), "stream": True}
    async with httpx.AsyncClient(timeout=60) as http:
        lines: list[str] = []
        url = f"{system.urls[0]}/v1/chat/completions"
        async with http.stream("POST", url, json=body, headers={"x-omnibus-continue": "true"}) as response:
            token = response.headers["x-omnibus-continue"]
            async for line in response.aiter_lines():
                lines.append(line)
                if line == "" and sum("tool_calls" in each for each in lines) == 3:
                    break
        last = [line for line in lines if line.startswith("id: ")][-1].removeprefix("id: ")
        url = f"{system.urls[1]}/v1/chat/completions/{token}/events"
        rest = await http.get(url, headers={"last-event-id": last})

    assert rest.status_code == 200, rest.text
    chunks = [json.loads(each[6:]) for each in (*lines, *rest.text.splitlines()) if each.startswith("data: {")]
    deltas = [call for chunk in chunks for choice in chunk["choices"] for call in choice["delta"].get("tool_calls", [])]
    assert [each["function"]["name"] for each in deltas if "name" in each["function"]] == [name]
    assert "".join(each["function"]["arguments"] for each in deltas) == arguments
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("model", MODELS)
async def test_a_required_call_of_a_custom_tool_obeys_its_regular_expression(
    client: openai.AsyncOpenAI, model: str
) -> None:
    grammar: Any = {"type": "grammar", "syntax": "regex", "definition": "(add|sub) [0-9]{1,3}"}

    response = await client.responses.create(
        model=model,
        input="hello",
        tools=[{"type": "custom", "name": "calculate", "format": grammar}],
        tool_choice={"type": "custom", "name": "calculate"},
        max_output_tokens=120,
    )

    [call] = [item for item in response.output if item.type == "custom_tool_call"]
    assert call.name == "calculate"
    assert re.fullmatch("(add|sub) [0-9]{1,3}", call.input), call.input


@pytest.mark.parametrize("model", MODELS)
async def test_tokens_of_a_text_and_of_a_chat_become_them_again(system: System, model: str) -> None:
    async with httpx.AsyncClient(base_url=system.url, timeout=60) as http:
        text = await read_json(http, "/tokenize", model=model, prompt="hello there", return_token_strs=True)
        chat = await read_json(http, "/tokenize", model=model, messages=[{"role": "user", "content": "hello there"}])
        usage = await read_json(http, "/v1/completions", model=model, prompt=chat["tokens"], max_tokens=1)
        joined = [await read_json(http, "/detokenize", model=model, tokens=each["tokens"]) for each in (text, chat)]

    assert text["count"] == len(text["tokens"]) == len(text["token_strs"])
    assert joined[0] == {"prompt": "hello there"}
    assert "hello there" in joined[1]["prompt"]
    assert "<|im_start|>user" in joined[1]["prompt"]
    assert usage["usage"]["prompt_tokens"] == chat["count"]
    assert chat["max_model_len"] > chat["count"]


async def read_json(http: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    """Return the response to ``body``."""
    response = await http.post(path, json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())
