"""A checkpoint's recommended sampling applies by default on every route."""

from typing import Any

import httpx
import pytest

from tests.e2e.sampling.conftest import DECLARED, RECOMMENDED

pytestmark = pytest.mark.e2e
CHAT = {"messages": [{"role": "user", "content": "hello there"}], "ignore_eos": True}


async def post_json(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


async def chat_text(client: httpx.AsyncClient, **more: Any) -> str:
    answer = await post_json(client, "/v1/chat/completions", {"model": RECOMMENDED, "max_tokens": 16, **CHAT, **more})
    return str(answer["choices"][0]["message"]["content"])


async def test_a_chat_is_greedy_where_the_model_is_unless_it_names_a_temperature(client: httpx.AsyncClient):
    greedy = await chat_text(client, temperature=0)

    assert {await chat_text(client) for _ in range(3)} == {greedy}
    assert len({await chat_text(client, temperature=1, seed=seed) for seed in range(4)}) > 1
    assert await chat_text(client, logprobs=False) == greedy  # as a task, not directly


async def test_completions_and_responses_are_greedy_as_well(client: httpx.AsyncClient):
    prompt = {"model": RECOMMENDED, "prompt": "hello", "max_tokens": 8, "ignore_eos": True}
    texts = [(await post_json(client, "/v1/completions", prompt))["choices"][0]["text"] for _ in range(2)]
    greedy = (await post_json(client, "/v1/completions", {**prompt, "temperature": 0}))["choices"][0]["text"]
    response = await post_json(
        client, "/v1/responses", {"model": RECOMMENDED, "input": "hello", "max_output_tokens": 4}
    )

    assert texts == [greedy, greedy]
    assert response["temperature"] == 0


async def test_an_answer_has_as_many_tokens_as_recommended(client: httpx.AsyncClient):
    body = {"messages": CHAT["messages"], "bad_words": ["impossible"], "temperature": 1, "seed": 1}
    usages = [
        (await post_json(client, "/v1/chat/completions", {"model": model, **body, **more}))["usage"][
            "completion_tokens"
        ]
        for model, more in (
            (RECOMMENDED, {"min_tokens": 24}),
            (DECLARED, {"min_tokens": 7}),
            (DECLARED, {"min_tokens": 30, "max_tokens": 30}),
        )
    ]

    assert usages == [24, 7, 30]


async def test_a_declaration_can_leave_the_checkpoint_out(client: httpx.AsyncClient):
    texts = {await chat_text(client, model=DECLARED, seed=seed) for seed in range(4)}

    assert len(texts) > 1
