"""Adapters are called by name, and their model's executors receive it."""

import asyncio
import json
from typing import Any

import pytest

from omnibus.executor.runner import Job
from omnibus.families import catalog
from tests.unit.gateway.house import (
    TEXT,
    ToyGateway,
    build_chat_body,
    read_chat_answer,
    read_error_body,
    write_chat_words,
)

ADAPTED = {**catalog.model_declaration("qwen2", ""), "adapters": {"pirate": "/adapters/pirate", "poet": "Sea/poet@v1"}}


@pytest.fixture
async def job_params(home: ToyGateway) -> list[dict[str, Any]]:
    """Parameters that executors of the model receive."""
    recorded_params: list[dict[str, Any]] = []

    async def record_params(job: Job) -> None:
        recorded_params.append(await job.value("params"))
        await write_chat_words(job)

    home.serve(**{TEXT: ADAPTED})
    await home.executor(TEXT, "L", "thinker", thinker=record_params)
    return recorded_params


async def test_adapters_are_listed_behind_their_model(home: ToyGateway) -> None:
    home.serve(**{TEXT: ADAPTED})

    models = (await home.http.get("/v1/models")).json()["data"]
    one = (await home.http.get("/v1/models/poet")).json()

    summaries = [(each["id"], each["parent"], each["root"]) for each in models]
    assert summaries == [(TEXT, None, None), ("pirate", TEXT, "pirate"), ("poet", TEXT, "Sea/poet@v1")]
    assert {**one, "id": TEXT, "parent": None, "root": None} == models[0]


@pytest.mark.parametrize("general", [False, True])
async def test_a_chat_names_its_adapter_to_the_executor_of_its_model(
    home: ToyGateway, job_params: list[dict[str, Any]], general: bool
) -> None:
    more = {"logprobs": False} if general else {}
    answers = await asyncio.gather(
        *(home.http.post("/v1/chat/completions", json=build_chat_body(name, "hello", seed=5) | more)
          for name in (TEXT, "pirate", "poet"))
    )  # fmt: skip

    assert [read_chat_answer(answer) for answer in answers] == ["You said hello [5] "] * 3
    assert [answer.json()["model"] for answer in answers] == [TEXT, "pirate", "poet"]
    assert sorted(params.get("adapter", "") for params in job_params) == ["", "pirate", "poet"]


async def test_all_routes_of_language_models_take_adapters(home: ToyGateway, job_params: list[dict[str, Any]]) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"model": "poet", "prompt": "hello"},
        "/v1/responses": {"model": "poet", "input": "hello", "store": False},
        "/v1/chat/completions": build_chat_body("poet", "hello") | {"n": 2},
    }
    for path, body in bodies.items():
        answer = await home.http.post(path, json=body)
        assert (answer.status_code, answer.json()["model"]) == (200, "poet"), answer.text
    stream_response = await home.http.post(
        "/v1/chat/completions", json=build_chat_body("poet", "hello") | {"stream": True}
    )

    assert json.loads(stream_response.text.split("\n\n")[0].removeprefix("data: "))["model"] == "poet"
    assert [params["adapter"] for params in job_params] == ["poet"] * 5


async def test_an_unknown_adapter_is_an_unknown_model(home: ToyGateway, job_params: list[dict[str, Any]]) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        body = build_chat_body("captain", "hello") if "chat" in path else {"model": "captain", "prompt": "hello"}
        missing = await home.http.post(path, json=body)
        assert (missing.status_code, read_error_body(missing)["param"]) == (404, "model")
        assert f"(known: pirate, poet, {TEXT})" in read_error_body(missing)["message"]
    picture = await home.http.post("/v1/images/generations", json={"model": "poet", "prompt": "a cat"})

    assert picture.status_code == 404
    assert job_params == []


async def test_clients_cannot_name_an_adapter_but_by_the_model(
    home: ToyGateway, job_params: list[dict[str, Any]]
) -> None:
    rejection = await home.http.post("/v1/chat/completions", json=build_chat_body(TEXT, "hello") | {"adapter": "poet"})

    assert rejection.status_code == 400
    assert job_params == []
