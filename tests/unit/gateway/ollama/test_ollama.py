"""Ollama's API: answers, streams, vectors, models and errors."""

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from omnibus import __version__
from omnibus.errors import BadRequest
from omnibus.executor.runner import Job
from omnibus.families import catalog
from tests.unit.gateway.anthropic.conftest import Opener
from tests.unit.gateway.anthropic.thinkers import RecordingThinker
from tests.unit.gateway.house import PNG, TEXT, VL, ToyGateway, start_toy_gateway

EMBEDDER = "toy-embedder"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": CITY}}


def user(content: str = "hello there", **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


async def post_chat(home: ToyGateway, *messages: dict[str, Any], **more: Any) -> httpx.Response:
    return await home.http.post("/api/chat", json={"model": TEXT, "messages": [*messages], **more})


def read_lines(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


async def read_received(home: ToyGateway, caller: RecordingThinker, *messages: Any, **more: Any) -> list[Any]:
    """Return the messages that the model receives."""
    response = await post_chat(home, *messages, stream=False, **more)
    assert response.status_code == 200, response.text
    return caller.messages


async def test_a_complete_answer_has_counts_and_durations(home: ToyGateway):
    response = await post_chat(home, user(), stream=False, keep_alive="5m")

    answer = response.json()
    assert answer["message"]["role"] == "assistant"
    assert answer["message"]["content"].startswith("You said hello there [")
    assert (answer["model"], answer["done"], answer["done_reason"]) == (TEXT, True, "stop")
    assert (answer["prompt_eval_count"], answer["eval_count"]) == (5, 5)
    assert 0 < answer["eval_duration"] <= answer["total_duration"] < 60e9
    await home.emptied()


async def test_answers_are_streamed_as_lines_unless_refused(home: ToyGateway):
    lines = read_lines(await post_chat(home, user()))

    assert [line["done"] for line in lines] == [*[False] * (len(lines) - 1), True]
    text = "".join(line["message"]["content"] for line in lines)
    assert text.startswith("You said hello there [")
    assert len(lines) > 3
    last = lines[-1]
    assert (last["done_reason"], last["eval_count"]) == ("stop", 5)
    assert last["prompt_eval_duration"] + last["eval_duration"] == last["total_duration"]
    await home.emptied()


async def test_a_prompt_is_answered_with_a_response(home: ToyGateway):
    whole = await home.http.post(
        "/api/generate", json={"model": f"{TEXT}:latest", "prompt": "hello", "system": "Be kind.", "stream": False}
    )
    lines = read_lines(await home.http.post("/api/generate", json={"model": TEXT, "prompt": "hello"}))

    assert whole.json()["response"].startswith("You said")
    assert "message" not in whole.json()
    assert "".join(line["response"] for line in lines).startswith("You said hello [")


@pytest.mark.parametrize("path", ["chat", "generate"])
async def test_a_request_without_a_prompt_loads_the_model(home: ToyGateway, path: str):
    loaded = await home.http.post(f"/api/{path}", json={"model": TEXT})
    unknown = await home.http.post(f"/api/{path}", json={"model": "nobody"})

    assert (loaded.json()["done"], loaded.json()["done_reason"]) == (True, "load")
    assert unknown.status_code == 404
    assert "nobody" in unknown.json()["error"]


async def test_calls_and_reasoning_are_in_the_message(tool_gateway: ToyGateway):
    whole = (await post_chat(tool_gateway, user(), tools=[WEATHER], stream=False)).json()["message"]
    lines = [line["message"] for line in read_lines(await post_chat(tool_gateway, user(), tools=[WEATHER]))]

    assert whole["thinking"] == "let me see"
    assert whole["content"] == "I look."
    functions = [call["function"] for call in whole["tool_calls"]]
    assert [(each["name"], each["arguments"]) for each in functions] == [
        ("weather", {"city": "Rome"}), ("weather", {"city": "Bonn"}),
    ]  # fmt: skip
    assert "".join(line.get("thinking", "") for line in lines) == "let me see"
    streamed = [call["function"] for line in lines for call in line.get("tool_calls", ())]
    assert streamed == functions
    assert "thinking" not in (await post_chat(tool_gateway, user(), think=False, stream=False)).json()["message"]


async def test_results_of_tools_are_matched_by_name_or_order(tool_gateway: ToyGateway, caller: RecordingThinker):
    calls = [{"function": {"name": name, "arguments": {"city": "Rome"}}} for name in ("weather", "time")]
    messages = await read_received(
        tool_gateway, caller,
        user(), {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": "noon", "tool_name": "time"}, {"role": "tool", "content": "sunny"},
        tools=[WEATHER],
    )  # fmt: skip

    sent = [call["id"] for call in messages[1]["tool_calls"]]
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"city": "Rome"}
    assert [(each["content"], each["tool_call_id"]) for each in messages[2:]] == [("noon", sent[1]), ("sunny", sent[0])]


async def test_a_result_without_a_call_is_rejected(tool_gateway: ToyGateway):
    response = await post_chat(tool_gateway, user(), {"role": "tool", "content": "noon", "tool_name": "time"})

    assert response.status_code == 400
    assert response.json() == {
        "error": "messages[1].role: The message before the result of 'time' must have its call in tool_calls."
    }


async def test_options_reach_the_model(tool_gateway: ToyGateway, caller: RecordingThinker):
    options = {
        "temperature": 0.5, "top_k": 5, "top_p": 0.9, "min_p": 0.1, "seed": 7, "num_predict": 9, "repeat_penalty": 1.1,
        "num_ctx": 4096, "num_thread": 2,
    }  # fmt: skip
    await read_received(tool_gateway, caller, user(), options=options)

    chosen = caller.params
    expected = {**options, "max_tokens": 9, "repetition_penalty": 1.1}
    names = ("temperature", "top_k", "top_p", "min_p", "max_tokens", "repetition_penalty")
    assert {name: chosen[name] for name in names} == {name: expected[name] for name in names}


@pytest.mark.parametrize(("format", "constraint"), [("json", {"json_object": True}), (CITY, {"json": CITY})])
async def test_formats_constrain_the_answer(
    tool_gateway: ToyGateway, caller: RecordingThinker, format: Any, constraint: Any
):
    await read_received(tool_gateway, caller, user(), format=format)

    assert caller.params["structured_outputs"] == constraint


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"options": {"temperature": 3}}, "options.temperature: "),
        ({"options": {"temprature": 1}}, "options.temprature"),
        ({"stop": "x"}, "stop"),
        ({"messages": [{"role": "assistant", "content": "", "images": ["eA=="]}]}, "messages[0].images: "),
        ({"messages": [user(images=["eA=="])]}, "messages: this model takes no image input"),
        ({"format": {"type": "nothing"}}, "format: "),
    ],
)
async def test_errors_are_one_text_that_names_the_field(home: ToyGateway, more: dict[str, Any], said: str):
    response = await home.http.post("/api/chat", json={"model": TEXT, "messages": [user()], **more})

    assert response.status_code == 400, response.text
    assert response.json().keys() == {"error"}
    assert said in response.json()["error"]


@pytest.mark.parametrize("field", [{"raw": True}, {"suffix": "x"}, {"template": "x"}, {"context": [1]}])
async def test_prompts_without_the_models_template_are_rejected(home: ToyGateway, field: dict[str, Any]):
    response = await home.http.post("/api/generate", json={"model": TEXT, "prompt": "x", **field})

    assert response.status_code == 400
    assert response.json()["error"].startswith(f"{next(iter(field))}: ")


async def test_images_are_base64_beside_the_text(tmp_path: Path):
    data = base64.b64encode(PNG).decode()
    async with start_toy_gateway(tmp_path) as home:
        await home.all_of(VL)
        chat = await post_chat(home, user("look", images=[data]), model=VL, stream=False)
        prompt = await home.http.post(
            "/api/generate", json={"model": VL, "prompt": "look", "images": [data], "stream": False}
        )
        broken = await post_chat(home, user("look", images=["eA=="]), model=VL)

    assert chat.status_code == prompt.status_code == 200, chat.text + prompt.text
    assert broken.status_code == 400
    assert broken.json()["error"].startswith("messages[0].images[0]: ")
    for text in (chat.json()["message"]["content"], prompt.json()["response"]):
        assert text.startswith("You said look saw ")


async def test_vectors_are_those_of_the_openai_route(tmp_path: Path):
    async with start_toy_gateway(tmp_path) as home:
        home.serve(VL, **{EMBEDDER: catalog.embedding_declaration("qwen2", "")})
        await home.executor(EMBEDDER, "B", "embedder")
        ours = await home.http.post("/api/embed", json={"model": EMBEDDER, "input": ["a b", "c"]})
        one = await home.http.post("/api/embeddings", json={"model": EMBEDDER, "prompt": "a b"})
        openai = await home.http.post("/v1/embeddings", json={"model": EMBEDDER, "input": ["a b", "c"]})
        empty = await home.http.post("/api/embed", json={"model": EMBEDDER, "input": []})

    expected = [each["embedding"] for each in openai.json()["data"]]
    assert ours.json()["embeddings"] == expected
    assert ours.json()["prompt_eval_count"] == openai.json()["usage"]["prompt_tokens"]
    assert one.json() == {"embedding": expected[0]}
    assert (empty.status_code, empty.json().keys()) == (400, {"error"})


async def test_models_are_listed_and_described(tmp_path: Path):
    async with start_toy_gateway(tmp_path) as home:
        await home.all_of(VL)
        tags = (await home.http.get("/api/tags")).json()["models"]
        running = (await home.http.get("/api/ps")).json()["models"]
        shown = (await home.http.post("/api/show", json={"model": f"{VL}:latest"})).json()
        unknown = await home.http.post("/api/show", json={"name": "nobody"})
        long = await home.http.post("/api/show", json={"name": "x" * (1 << 16)})
        version = (await home.http.get("/api/version")).json()

    assert VL in [each["name"] for each in tags]
    assert running == tags
    assert {"completion", "vision", "tools"} <= {*shown["capabilities"]}
    assert (unknown.status_code, long.status_code) == (404, 413)
    assert unknown.json()["error"].startswith("model: ")
    assert version == {"version": __version__}


class FailingThinker(RecordingThinker):
    """A thinker that fails after its first text."""

    async def __call__(self, job: Job) -> None:
        await job.send("text", {"text": "I look.", "ids": [0]})
        raise BadRequest("the schema is too complex")


async def test_an_error_in_a_stream_is_its_last_line(open_gateway: Opener):
    async with open_gateway(FailingThinker()) as home:
        lines = read_lines(await post_chat(home, user()))

    assert lines[0]["message"]["content"] == "I look."
    assert lines[1:] == [{"error": "the schema is too complex"}]


async def test_routes_that_only_ollama_has_are_named(home: ToyGateway):
    response = await home.http.post("/api/pull", json={"model": "x"})

    assert response.status_code == 404
    assert response.json()["error"].startswith("/api/pull is not served here. Below /api/ there are: chat, ")
