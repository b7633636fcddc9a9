"""GGUF files served by llama.cpp: answers and vectors over HTTP, alone and together."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest

from omnibus.families import catalog
from omnibus_models import tiny
from tests.e2e.system import System, start_system
from tests.e2e.watch import Watch
from tests.gguf_encoders import write_encoder_gguf
from tests.gguf_files import write_gguf, write_gguf_adapter
from tests.gguf_images import build_gemma, write_pair
from tests.lora import write_adapter
from tests.oracles import shaped
from tests.unit.encoder.test_gguf_embedder import BOUND
from tests.unit.encoder.test_sentence_runner import TEXTS, embed_by_library
from tests.unit.llm.engine.test_llama_cpp_images import draw_image

pytestmark = [pytest.mark.e2e, pytest.mark.llama_cpp, pytest.mark.timeout(600)]

MODEL, CONTEXT, EMBEDDER, ADAPTER, SEEING = "tiny-gguf", 1024, "tiny-vectors", "pirate", "seeing"
TEXT_PARTS = [{"type": "text", "text": "what is it"}]
CHATS = [[{"role": "user", "content": text}] for text in ("the small white cat", "a red mat", "one two three", "fox")]


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    directory = tmp_path_factory.mktemp("llama-cpp")
    checkpoint = tiny.build("qwen3", directory / "qwen3")
    file = write_gguf(checkpoint, directory / "tiny.gguf", "Q8_0")
    adapter = write_gguf_adapter(checkpoint, write_adapter(checkpoint, directory / ADAPTER), directory / "pirate.gguf")
    declaration = catalog.model_declaration("qwen3", str(file))
    option = {**catalog.DEPLOYMENTS["qwen3"]["options"]["L"], "engine": "omnibus_engines:llama_cpp"}
    model = {**declaration, "context": CONTEXT, "options": {"L": option}, "paths": [{"options": ["L"], "share": 1}]}
    vectors = write_encoder_gguf(tiny.build("sentence_encoder", directory / "bert"), directory / "bert.gguf", "MEAN")
    option = {**catalog.DEPLOYMENTS["sentence_encoder"]["options"]["B"], "engine": "omnibus_engines:llama_cpp"}
    embedder = {**catalog.model_declaration("sentence_encoder", str(vectors)), "options": {"B": option}}
    model["adapters"] = {ADAPTER: str(adapter)}
    seeing_file = write_pair(build_gemma(directory / "gemma"), directory / "seeing")
    options = catalog.DEPLOYMENTS["multimodal_lm"]["options"]
    apart = {name: {**options[name], "engine": "omnibus_engines:llama_cpp"} for name in ("E", "L")}
    seeing = {**catalog.model_declaration("multimodal_lm", str(seeing_file)), "options": apart}
    seeing |= {"paths": [{"options": ["E", "L"], "share": 1}], "context": CONTEXT}
    with start_system(directory, {MODEL: model, EMBEDDER: embedder, SEEING: seeing}) as new_system:
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


async def test_an_adapter_is_a_model_whose_requests_share_steps_with_its_bases(client: httpx.AsyncClient) -> None:
    base, own = [read_text(await ask(client, CHATS[0], model=model)) for model in (MODEL, ADAPTER)]

    together = await asyncio.gather(*(ask(client, CHATS[0], model=model) for model in (MODEL, ADAPTER) * 2))
    unknown = await ask(client, CHATS[0], model="captain")
    listed = {each["id"]: each["parent"] for each in (await client.get("/v1/models")).json()["data"]}

    assert base != own
    assert [read_text(response) for response in together] == [base, own] * 2
    assert (listed[ADAPTER], unknown.status_code) == (MODEL, 404)


async def test_images_are_seen(client: httpx.AsyncClient, system: System) -> None:
    def make_chat(seed: int) -> list[dict[str, Any]]:
        url = f"data:image/png;base64,{base64.b64encode(draw_image(seed, 200, 90)).decode()}"
        return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, *TEXT_PARTS]}]

    alone = [read_text(await ask(client, make_chat(seed), model=SEEING)) for seed in range(3)]
    together = await asyncio.gather(*(ask(client, make_chat(seed), model=SEEING) for seed in range(3)))
    [text, image] = [
        (await ask(client, chat, model=SEEING)).json()["usage"]["prompt_tokens"]
        for chat in ([{"role": "user", "content": TEXT_PARTS}], make_chat(0))
    ]
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    refused = await ask(client, [{"role": "user", "content": [sound]}], model=SEEING)

    assert [read_text(response) for response in together] == alone
    assert len({*alone}) > 1
    assert image - text == 16 + 2 + 4  # rows, and a token and two line breaks on each side
    assert (refused.status_code, "it takes: image" in refused.text) == (400, True)
    await system.ledger_is_empty()


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


@pytest.mark.numeric
@pytest.mark.cell("llama_cpp", "sentence_encoder", "vectors", shape="B")
async def test_vectors_are_those_of_the_library(client: httpx.AsyncClient, tmp_path: Path) -> None:
    answer = await client.post("/v1/embeddings", json={"model": EMBEDDER, "input": TEXTS})
    long = await client.post("/v1/embeddings", json={"model": EMBEDDER, "input": ["cat " * 130]})
    empty = await client.post("/v1/embeddings", json={"model": EMBEDDER, "input": []})

    assert answer.status_code == 200, answer.text
    vectors = np.array([each["embedding"] for each in answer.json()["data"]], np.float32)
    means = np.stack(embed_by_library(tiny.build("sentence_encoder", tmp_path / "it"), TEXTS))
    assert np.abs(vectors - means / np.linalg.norm(means, axis=1, keepdims=True)).max() < BOUND
    assert answer.json()["usage"]["prompt_tokens"] > 4 * len(TEXTS)
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert empty.status_code == 400
