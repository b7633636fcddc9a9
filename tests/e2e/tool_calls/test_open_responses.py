"""The requests of Open Responses' compliance tests, against a simulated model.

They are sent whole, streamed and over a WebSocket. The model reads images. It calls a tool if the request offers the
one of a rule, and answers with words otherwise.
"""

import base64
import json
from collections.abc import Iterator
from typing import Any

import openresponses_types as spec
import pytest
import websockets

from tests.e2e.system import System, start_system
from tests.open_responses import check_events, check_response
from tests.unit.gateway.responses_house import events_of
from tests.unit.gateway.samples import make_sample_picture

pytestmark = pytest.mark.e2e

JUDGED = "judged"
PNG = f"data:image/png;base64,{base64.b64encode(make_sample_picture('PNG', (32, 32))).decode()}"
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
CALLS = "What's the weather like in San Francisco?"


def make_message(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


REQUESTS: dict[str, dict[str, Any]] = {
    "basic": {"input": [make_message("user", "Say hello in exactly 3 words.")]},
    "system prompt": {"input": [make_message("system", "You are a pirate."), make_message("user", "Say hello.")]},
    "tool calling": {"input": [make_message("user", CALLS)], "tools": [WEATHER]},
    "image input": {
        "input": [
            make_message(
                "user",
                [{"type": "input_text", "text": "What do you see?"}, {"type": "input_image", "image_url": PNG}],
            )
        ]
    },
    "several turns": {
        "input": [
            make_message("user", "My name is Alice."),
            make_message("assistant", "Hello Alice! Nice to meet you."),
            make_message("user", "What is my name?"),
        ]
    },
}


@pytest.fixture(scope="module")
def judged_system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    directory = tmp_path_factory.mktemp("judged")
    profile = directory / "answers.json"
    call = {"name": "get_weather", "arguments": {"location": "San Francisco, CA"}}
    thinker = {"batch": {"base": 0.01}, "step": {"base": 0.002}, "steps": 6, "width": 8}
    vision = {"batch": {"base": 0.01}, "tokens": {"image": 4}, "width": 8}
    components = {"vision": vision, "thinker": {**thinker, "answers": [{"contains": CALLS, "calls": [call]}]}}
    profile.write_text(json.dumps({"default": {"components": components}}))
    option = {"components": ["vision", "thinker"], "service": "llm", "engine": "omnibus_engines:sim"}
    model = {
        "family": "qwen2_5_vl",
        "checkpoint": str(profile),
        "options": {"M": option},
        "paths": [{"options": ["M"]}],
    }
    with start_system(directory, {JUDGED: model}) as new_system:
        yield new_system


def check_answer(name: str, response: spec.ResponseResource) -> None:
    """Check that a response is completed and contains the requested item."""
    assert response.status == "completed"
    kinds = [item.type for item in response.output]
    assert kinds == (["function_call"] if name == "tool calling" else ["message"])


@pytest.mark.parametrize("name", REQUESTS)
async def test_an_answer_is_what_the_specification_says(judged_system: System, name: str):
    await judged_system.becomes_ready()
    async with judged_system.http() as http:
        whole = await http.post("/v1/responses", json={"model": JUDGED, **REQUESTS[name]})
        stream_response = await http.post("/v1/responses", json={"model": JUDGED, "stream": True, **REQUESTS[name]})
    async with websockets.connect(f"{judged_system.url.replace('http', 'ws', 1)}/v1/responses") as socket:
        await socket.send(json.dumps({"type": "response.create", "model": JUDGED, **REQUESTS[name]}))
        events = [json.loads(await socket.recv())]
        while events[-1]["type"] != "response.completed":
            events.append(json.loads(await socket.recv()))

    check_answer(name, check_response(whole.json()))
    for each in (events_of(stream_response.text), events):
        check_answer(name, check_events(each))
        kinds = [event["type"] for event in each]
        assert ("response.function_call_arguments.delta" in kinds) == (name == "tool calling")


async def test_a_mistake_over_a_websocket_is_what_the_specification_says(judged_system: System):
    await judged_system.becomes_ready()
    async with websockets.connect(f"{judged_system.url.replace('http', 'ws', 1)}/v1/responses") as socket:
        await socket.send(json.dumps({"type": "response.create", "model": JUDGED, "input": "hello", "store": 5}))
        error = spec.WebSocketErrorEvent.model_validate_json(await socket.recv(), strict=True)

    assert (error.status, error.error.param) == (400, "store")
