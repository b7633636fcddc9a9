"""A GGUF file served by llama.cpp: answers over HTTP, alone and together."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from omnibus.families import catalog
from omnibus_models import tiny
from tests.e2e.system import System, start_system
from tests.e2e.watch import Watch
from tests.gguf_files import write_gguf
from tests.oracles import shaped

pytestmark = [pytest.mark.e2e, pytest.mark.llama_cpp, pytest.mark.timeout(600)]

MODEL, CONTEXT = "tiny-gguf", 1024
CHATS = [[{"role": "user", "content": text}] for text in ("the small white cat", "a red mat", "one two three", "fox")]


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    directory = tmp_path_factory.mktemp("llama-cpp")
    file = write_gguf(tiny.build("qwen3", directory / "qwen3"), directory / "tiny.gguf", "Q8_0")
    declaration = catalog.model_declaration("qwen3", str(file))
    option = {**catalog.DEPLOYMENTS["qwen3"]["options"]["L"], "engine": "omnibus_engines:llama_cpp"}
    model = {**declaration, "context": CONTEXT, "options": {"L": option}, "paths": [{"options": ["L"], "share": 1}]}
    with start_system(directory, {MODEL: model}) as new_system:
        yield new_system


@pytest.fixture
async def client(system: System) -> AsyncIterator[httpx.AsyncClient]:
    await system.becomes_ready()
    async with httpx.AsyncClient(base_url=system.url, timeout=60) as new_client:
        yield new_client


async def ask(client: httpx.AsyncClient, messages: Any, **params: Any) -> httpx.Response:
    body = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 24, **params}
    return await client.post("/v1/chat/completions", json=body)


def read_text(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["message"]["content"]
    return text


async def test_answers_at_once_are_those_of_answers_alone_whole_and_streamed(client: httpx.AsyncClient) -> None:
    alone = [read_text(await ask(client, chat)) for chat in CHATS]

    together = await asyncio.gather(*(ask(client, chat) for chat in CHATS))
    streamed = await ask(client, CHATS[0], stream=True)

    assert [read_text(response) for response in together] == alone
    chunks = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == alone[0]
    assert len(chunks) > 4


async def test_schemas_hold_and_those_that_cannot_are_refused(client: httpx.AsyncClient) -> None:
    def shape(schema: Any) -> dict[str, Any]:
        return {"type": "json_schema", "json_schema": {"name": "shape", "schema": schema}}

    answer = read_text(await ask(client, CHATS[0], max_tokens=64, response_format=shape(shaped.CITY)))
    refused = await ask(client, CHATS[0], response_format=shape({"not": {"type": "string"}}))

    jsonschema.validate(json.loads(answer), shaped.CITY)
    assert refused.status_code == 400


async def test_a_prompt_over_the_context_is_a_400_that_names_it(client: httpx.AsyncClient) -> None:
    refused = await ask(client, [{"role": "user", "content": "mat " * 1100}])

    assert refused.status_code == 400
    assert str(CONTEXT) in refused.json()["error"]["message"]


async def test_a_client_that_leaves_ends_its_answer(client: httpx.AsyncClient, system: System) -> None:
    body = {"model": MODEL, "messages": CHATS[0], "max_tokens": 900, "ignore_eos": True, "stream": True}
    async with Watch.on(system) as watch:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            async for line in response.aiter_lines():
                if '"content":' in line:
                    break
        end = await watch.end(response.headers["x-request-id"])

    assert end.status == "cancelled"
    assert (await ask(client, CHATS[1])).status_code == 200
