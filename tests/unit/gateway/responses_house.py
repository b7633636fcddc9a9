"""Gateways with a store, for tests of responses, and output readers."""

import asyncio
import json
from typing import Any

import httpx

from omnibus.executor.runner import Job
from tests.unit.gateway.house import TEXT, ToyGateway
from tests.unit.gateway.http.test_exchange import ExchangeClient
from tests.unit.sidecar.node import wait_until

PATH = "/v1/responses"
#: Keys that Open Responses requires in every response.
KEYS = [
    "id",
    "object",
    "created_at",
    "completed_at",
    "status",
    "incomplete_details",
    "model",
    "previous_response_id",
    "instructions",
    "output",
    "error",
    "tools",
    "tool_choice",
    "truncation",
    "parallel_tool_calls",
    "text",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "temperature",
    "reasoning",
    "user",
    "usage",
    "max_output_tokens",
    "max_tool_calls",
    "store",
    "background",
    "service_tier",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
]


async def post_response(home: ToyGateway, input: Any = "hello there", **more: Any) -> httpx.Response:
    return await home.http.post(PATH, json={"model": TEXT, "input": input, "seed": 5, **more})


def read_response_body(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return dict(response.json())


def text_of(response: dict[str, Any]) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
        if part["type"] == "output_text"
    )


def events_of(body: str) -> list[dict[str, Any]]:
    """Return the events of a stream. Checks that names match types, and numbers have no gaps."""
    blocks = [block for block in body.split("\n\n") if block]
    assert blocks.pop() == "data: [DONE]"
    events = []
    for block in blocks:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    numbers = [event["sequence_number"] for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(events)))
    return events


async def echo_messages(job: Job) -> None:
    """Write all roles and texts of the chat."""
    messages = await job.value("messages")
    transcript = "|".join(f"{message['role']}:{_get_text(message['content'])}" for message in messages)
    await job.send("text", {"text": transcript, "ids": [1]})
    usage = {"prompt_tokens": 5, "completion_tokens": 1}
    job.close("text", {"finish_reason": "stop", "usage": usage})


def _get_text(content: Any) -> str:
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


class ResponsesPair:
    """Two gateways over one store and one bus. ``leave`` ends the first one silently, as a kill does."""

    def __init__(self, first: ToyGateway, second: ToyGateway) -> None:
        self.first = first
        self.second = second

    async def serve(self, model: str, **works: Any) -> None:
        for home in (self.first, self.second):
            home.serve(model)
        assert self.first.router.plan is not None
        for option, spec in self.first.router.plan.models[model].options.items():
            await self.first.executor(model, option, *spec.components, **works)
        there = {status.id for status in self.first.members.statuses()}
        await wait_until(lambda: {status.id for status in self.second.members.statuses()} == there)


class SlowResponseThinker:
    """A thinker that writes a word at each signal; the timing determines how words are grouped."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.go = asyncio.Event()
        self.after = 1
        self.known: list[list[int]] = []

    async def __call__(self, job: Job) -> None:
        self.known.append(list(job.resume_state("text").get("ids", ())))
        first, rest = self.words[: self.after], self.words[self.after :]
        await job.send("text", {"text": "".join(first), "ids": list(range(len(first)))})
        await self.go.wait()
        for number, word in enumerate(rest, len(first)):
            await job.send("text", {"text": word, "ids": [number]})
        job.close("text", {"finish_reason": "stop", "usage": {"completion_tokens": len(self.words)}})


class ResponseReader:
    """A client that reads a stream."""

    def __init__(self, home: ToyGateway, method: str, path: str, **more: Any) -> None:
        self.text = ""
        self._home = home
        self.task = asyncio.create_task(self._read(method, path, more))

    async def _read(self, method: str, path: str, more: dict[str, Any]) -> None:
        body = more.get("json")
        self.client = client = ExchangeClient(body if body is not None else {})
        client.scope["path"], client.scope["method"] = path, method
        client.scope["raw_path"] = path.encode()
        client.scope["query_string"] = more.get("query", b"")
        try:
            await self._home.app(client.scope, client.receive, client.send)
        finally:
            self.text = client.text

    @property
    def events(self) -> list[dict[str, Any]]:
        return events_of(self.client.text + ("" if self.client.text.endswith("[DONE]\n\n") else "data: [DONE]\n\n"))

    async def until(self, expected_text: str) -> None:
        await wait_until(lambda: hasattr(self, "client") and expected_text in self.client.text)
