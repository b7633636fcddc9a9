"""Adapters are called by name, and their model's executors receive it."""

import asyncio
import json
from typing import Any

import pytest

from omnibus.executor.runner import Job
from omnibus.families import catalog
from tests.unit.gateway.house import TEXT, House, answered, error, question, think

ADAPTED = {**catalog.model_declaration("qwen2", ""), "adapters": {"pirate": "/adapters/pirate", "poet": "Sea/poet@v1"}}


@pytest.fixture
async def asked(home: House) -> list[dict[str, Any]]:
    """Parameters that executors of the model receive."""
    given: list[dict[str, Any]] = []

    async def noting(job: Job) -> None:
        given.append(await job.value("params"))
        await think(job)

    home.serve(**{TEXT: ADAPTED})
    await home.executor(TEXT, "L", "thinker", thinker=noting)
    return given


async def test_adapters_are_listed_behind_their_model(home: House) -> None:
    home.serve(**{TEXT: ADAPTED})

    found = (await home.http.get("/v1/models")).json()["data"]
    one = (await home.http.get("/v1/models/poet")).json()

    known = [(each["id"], each["parent"], each["root"]) for each in found]
    assert known == [(TEXT, None, None), ("pirate", TEXT, "pirate"), ("poet", TEXT, "Sea/poet@v1")]
    assert {**one, "id": TEXT, "parent": None, "root": None} == found[0]


@pytest.mark.parametrize("general", [False, True])
async def test_a_chat_names_its_adapter_to_the_executor_of_its_model(
    home: House, asked: list[dict[str, Any]], general: bool
) -> None:
    more = {"logprobs": False} if general else {}
    answers = await asyncio.gather(
        *(home.http.post("/v1/chat/completions", json=question(name, "hello", seed=5) | more)
          for name in (TEXT, "pirate", "poet"))
    )  # fmt: skip

    assert [answered(answer) for answer in answers] == ["You said hello [5] "] * 3
    assert [answer.json()["model"] for answer in answers] == [TEXT, "pirate", "poet"]
    assert sorted(params.get("adapter", "") for params in asked) == ["", "pirate", "poet"]


async def test_all_routes_of_language_models_take_adapters(home: House, asked: list[dict[str, Any]]) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"model": "poet", "prompt": "hello"},
        "/v1/responses": {"model": "poet", "input": "hello", "store": False},
        "/v1/chat/completions": question("poet", "hello") | {"n": 2},
    }
    for path, body in bodies.items():
        answer = await home.http.post(path, json=body)
        assert (answer.status_code, answer.json()["model"]) == (200, "poet"), answer.text
    streamed = await home.http.post("/v1/chat/completions", json=question("poet", "hello") | {"stream": True})

    assert json.loads(streamed.text.split("\n\n")[0].removeprefix("data: "))["model"] == "poet"
    assert [params["adapter"] for params in asked] == ["poet"] * 5


async def test_an_unknown_adapter_is_an_unknown_model(home: House, asked: list[dict[str, Any]]) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        body = question("captain", "hello") if "chat" in path else {"model": "captain", "prompt": "hello"}
        missing = await home.http.post(path, json=body)
        assert (missing.status_code, error(missing)["param"]) == (404, "model")
        assert f"(known: pirate, poet, {TEXT})" in error(missing)["message"]
    picture = await home.http.post("/v1/images/generations", json={"model": "poet", "prompt": "a cat"})

    assert picture.status_code == 404
    assert asked == []


async def test_clients_cannot_name_an_adapter_but_by_the_model(home: House, asked: list[dict[str, Any]]) -> None:
    refused = await home.http.post("/v1/chat/completions", json=question(TEXT, "hello") | {"adapter": "poet"})

    assert refused.status_code == 400
    assert asked == []
