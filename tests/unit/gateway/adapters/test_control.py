"""Operators load and unload adapters at any gateway; requests then call them as models, at all gateways."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis.asyncio as redis

from omnibus.errors import BadRequest
from omnibus.executor.runner import Job
from omnibus.families import catalog
from tests.unit.checkpoints.test_adapters import write_adapter
from tests.unit.gateway.apps.estate import LOUD, AppCluster, AppGateway, start_app_cluster
from tests.unit.gateway.house import (
    OMNI,
    TEXT,
    VL,
    build_chat_body,
    read_chat_answer,
    read_error_body,
    write_chat_words,
)
from tests.unit.sidecar.node import wait_until

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture
async def cluster(tmp_path: Path, valkey_url: str) -> AsyncIterator[AppCluster]:
    """An empty store and no gateway yet; ``adapters`` contains one adapter."""
    client = redis.Redis.from_url(valkey_url)
    await client.flushall()
    await client.aclose()
    write_adapter(_make_directory(tmp_path / "adapters") / "pirate")
    async with start_app_cluster(tmp_path, valkey_url, adapters_dir=str(tmp_path / "adapters")) as app_cluster:
        declaration = {**catalog.model_declaration("qwen2", ""), "adapters": {"poet": "Sea/poet@v1"}}
        app_cluster.home.serve(VL, **{TEXT: declaration})
        yield app_cluster


def _make_directory(directory: Path) -> Path:
    directory.mkdir()
    return directory


@pytest.fixture
async def gate(cluster: AppCluster) -> AppGateway:
    app_gateway = cluster.gateway()
    await wait_until(lambda: not app_gateway.apps.registry.starting_apps)
    return app_gateway


@pytest.fixture
async def job_params(cluster: AppCluster) -> list[dict[str, Any]]:
    """Parameters that the language model's executor receives. It has no adapter called ``wide``."""
    recorded_params: list[dict[str, Any]] = []

    async def record_params(job: Job) -> None:
        params = await job.value("params")
        recorded_params.append(params)
        if params.get("adapter") == "wide":
            raise BadRequest("the adapter 'wide': it was trained on another model")
        await write_chat_words(job)

    await cluster.home.executor(TEXT, "L", "thinker", thinker=record_params)
    return recorded_params


async def load_adapter(gate: AppGateway, name: str = "pirate", path: str = "pirate", **more: Any) -> httpx.Response:
    return await gate.ask("POST", LOAD, {"lora_name": name, "lora_path": path, "base_model_name": TEXT, **more})


async def test_a_loaded_adapter_is_called_and_listed_as_a_model_at_all_gateways(
    cluster: AppCluster, gate: AppGateway, job_params: list[dict[str, Any]]
) -> None:
    other = cluster.gateway()
    await wait_until(lambda: not other.apps.registry.starting_apps)

    response = await load_adapter(gate)

    assert (response.status_code, response.text) == (200, "Success: LoRA adapter 'pirate' added successfully.")
    assert [params["max_tokens"] for params in job_params] == [1]  # an executor has tried it
    for each in (gate, other):
        answer = await each.http.post("/v1/chat/completions", json=build_chat_body("pirate", "hello"))
        assert (read_chat_answer(answer)[:14], answer.json()["model"]) == ("You said hello", "pirate")
    one = (await other.http.get("/v1/models/pirate")).json()
    models = (await gate.http.get("/v1/models")).json()["data"]
    assert (one["root"], one["parent"], one["owned_by"]) == ("pirate", TEXT, "omnibus")
    assert {model["id"]: model["parent"] for model in models} == {VL: None, TEXT: None, "poet": TEXT, "pirate": TEXT}
    sources = [params["adapter_source"] for params in job_params]
    assert [params["adapter"] for params in job_params] == ["pirate"] * 3
    assert {source["path"] for source in sources} == {"pirate"}
    assert [len(source["sha256"]) for source in sources] == [64] * 3


async def test_an_unloaded_adapter_is_an_unknown_model(gate: AppGateway, job_params: list[dict[str, Any]]) -> None:
    await load_adapter(gate)

    response = await gate.ask("POST", UNLOAD, {"lora_name": "pirate"})

    assert (response.status_code, response.text) == (200, "Success: LoRA adapter 'pirate' removed successfully.")
    missing = await gate.http.post("/v1/chat/completions", json=build_chat_body("pirate", "hello"))
    again = await gate.ask("POST", UNLOAD, {"lora_name": "pirate"})
    poet_response = await gate.ask("POST", UNLOAD, {"lora_name": "poet"})
    assert (missing.status_code, again.status_code, poet_response.status_code) == (404, 404, 409)
    assert read_error_body(again)["message"] == "The lora adapter 'pirate' cannot be found."
    assert len(job_params) == 1


async def test_one_of_the_same_name_takes_its_place_only_if_that_is_said(
    cluster: AppCluster, gate: AppGateway, job_params: list[dict[str, Any]]
) -> None:
    await load_adapter(gate)
    write_adapter(cluster.directory.parent / "adapters" / "pirate-2", lora_alpha=4)

    rejection = await load_adapter(gate, path="pirate-2")
    replacement = await load_adapter(gate, path="pirate-2", load_inplace=True)
    await gate.http.post("/v1/chat/completions", json=build_chat_body("pirate", "hello"))

    assert (rejection.status_code, replacement.status_code) == (400, 200)
    assert "has already been loaded" in read_error_body(rejection)["message"]
    assert [params["adapter_source"]["path"] for params in job_params] == ["pirate", "pirate-2", "pirate-2"]


async def test_without_the_token_nothing_is_changed(gate: AppGateway, job_params: list[dict[str, Any]]) -> None:
    for path, body in ((LOAD, {"lora_name": "pirate", "lora_path": "pirate"}), (UNLOAD, {"lora_name": "poet"})):
        for token in ("", "wrong"):
            assert (await gate.ask("POST", path, body, token=token)).status_code == 401
    assert job_params == []
    assert await gate.store.adapters() == {}


async def test_it_is_off_unless_a_directory_is_allowed(cluster: AppCluster, job_params: list[dict[str, Any]]) -> None:
    rejection = await load_adapter(cluster.gateway(adapters_dir=""))

    assert (rejection.status_code, read_error_body(rejection)["code"]) == (403, "forbidden")
    assert "set OMNIBUS_GATEWAY_ADAPTERS_DIR" in read_error_body(rejection)["message"]
    assert job_params == []


@pytest.mark.parametrize(
    ("fields", "status", "fault"),
    [
        ({"lora_path": "../apps"}, 403, "not below OMNIBUS_GATEWAY_ADAPTERS_DIR"),
        ({"lora_path": "nobody"}, 400, "unknown directory 'nobody'"),
        ({"lora_path": "broken"}, 400, "use_dora, which is not supported"),
        ({"lora_name": "wide"}, 400, "it was trained on another model"),
        ({"lora_name": VL}, 409, "choose another"),
        ({"lora_name": "poet"}, 409, "choose another"),
        ({"lora_name": "a b"}, 400, "Expected `str` matching regex"),
        ({"base_model_name": "nobody"}, 404, "nobody"),
        ({"base_model_name": None}, 400, f"one of {VL}, {TEXT}"),
        ({"is_3d_lora_weight": True}, 400, "not supported"),
        ({"lora_path": 5}, 400, "Expected `str`, got `int`"),
    ],
)
async def test_what_cannot_be_loaded_is_refused_and_nothing_is_kept(
    cluster: AppCluster,
    gate: AppGateway,
    job_params: list[dict[str, Any]],
    fields: dict[str, Any],
    status: int,
    fault: str,
) -> None:
    write_adapter(cluster.directory.parent / "adapters" / "broken", use_dora=True)

    rejection = await load_adapter(gate, **{"name": "pirate", "path": "pirate", **_rename_fields(fields)})

    assert (rejection.status_code, fault in read_error_body(rejection)["message"]) == (status, True), rejection.text
    assert await gate.store.adapters() == {}


def _rename_fields(fields: dict[str, Any]) -> dict[str, Any]:
    return {{"lora_name": "name", "lora_path": "path"}.get(name, name): value for name, value in fields.items()}


async def test_an_adapter_of_a_model_that_is_gone_serves_nobody_until_the_model_is_back(
    cluster: AppCluster, gate: AppGateway, job_params: list[dict[str, Any]]
) -> None:
    await load_adapter(gate)
    plan = cluster.home.router.plan

    cluster.home.serve(VL, OMNI)
    missing_response = await gate.http.post("/v1/chat/completions", json=build_chat_body("pirate", "hello"))
    cluster.home.router.plan = plan
    back = await gate.http.post("/v1/chat/completions", json=build_chat_body("pirate", "hello"))

    assert (missing_response.status_code, back.status_code) == (404, 200)


async def test_an_app_cannot_bring_a_model_of_an_adapters_name(
    cluster: AppCluster, gate: AppGateway, job_params: list[dict[str, Any]]
) -> None:
    await load_adapter(gate)
    cluster.write("loud", LOUD, model="pirate")

    rejection = await gate.ask("POST", "/v1/apps", {"source": {"module": "loud", "directory": "."}})

    assert (rejection.status_code, "is an adapter" in read_error_body(rejection)["message"]) == (409, True), (
        rejection.text
    )
