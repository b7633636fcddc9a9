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
from tests.unit.checkpoints.test_adapters import adapter
from tests.unit.gateway.apps.estate import LOUD, Estate, Gateway, estate
from tests.unit.gateway.house import OMNI, TEXT, VL, answered, error, question, think
from tests.unit.sidecar.node import until

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture
async def land(tmp_path: Path, valkey_url: str) -> AsyncIterator[Estate]:
    """An empty store and no gateway yet; ``adapters`` contains one adapter."""
    client = redis.Redis.from_url(valkey_url)
    await client.flushall()
    await client.aclose()
    adapter(_made(tmp_path / "adapters") / "pirate")
    async with estate(tmp_path, valkey_url, adapters_dir=str(tmp_path / "adapters")) as made:
        declared = {**catalog.model_declaration("qwen2", ""), "adapters": {"poet": "Sea/poet@v1"}}
        made.home.serve(VL, **{TEXT: declared})
        yield made


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


@pytest.fixture
async def gate(land: Estate) -> Gateway:
    made = land.gateway()
    await until(lambda: not made.apps.registry.starting_apps)
    return made


@pytest.fixture
async def given(land: Estate) -> list[dict[str, Any]]:
    """Parameters that the language model's executor receives. It has no adapter called ``wide``."""
    found: list[dict[str, Any]] = []

    async def noting(job: Job) -> None:
        params = await job.value("params")
        found.append(params)
        if params.get("adapter") == "wide":
            raise BadRequest("the adapter 'wide': it was trained on another model")
        await think(job)

    await land.home.executor(TEXT, "L", "thinker", thinker=noting)
    return found


async def load(gate: Gateway, name: str = "pirate", path: str = "pirate", **more: Any) -> httpx.Response:
    return await gate.ask("POST", LOAD, {"lora_name": name, "lora_path": path, "base_model_name": TEXT, **more})


async def test_a_loaded_adapter_is_called_and_listed_as_a_model_at_all_gateways(
    land: Estate, gate: Gateway, given: list[dict[str, Any]]
) -> None:
    other = land.gateway()
    await until(lambda: not other.apps.registry.starting_apps)

    made = await load(gate)

    assert (made.status_code, made.text) == (200, "Success: LoRA adapter 'pirate' added successfully.")
    assert [params["max_tokens"] for params in given] == [1]  # an executor has tried it
    for each in (gate, other):
        answer = await each.http.post("/v1/chat/completions", json=question("pirate", "hello"))
        assert (answered(answer)[:14], answer.json()["model"]) == ("You said hello", "pirate")
    one = (await other.http.get("/v1/models/pirate")).json()
    listed = (await gate.http.get("/v1/models")).json()["data"]
    assert (one["root"], one["parent"], one["owned_by"]) == ("pirate", TEXT, "omnibus")
    assert {model["id"]: model["parent"] for model in listed} == {VL: None, TEXT: None, "poet": TEXT, "pirate": TEXT}
    sources = [params["adapter_source"] for params in given]
    assert [params["adapter"] for params in given] == ["pirate"] * 3
    assert {source["path"] for source in sources} == {"pirate"}
    assert [len(source["sha256"]) for source in sources] == [64] * 3


async def test_an_unloaded_adapter_is_an_unknown_model(gate: Gateway, given: list[dict[str, Any]]) -> None:
    await load(gate)

    gone = await gate.ask("POST", UNLOAD, {"lora_name": "pirate"})

    assert (gone.status_code, gone.text) == (200, "Success: LoRA adapter 'pirate' removed successfully.")
    missing = await gate.http.post("/v1/chat/completions", json=question("pirate", "hello"))
    again = await gate.ask("POST", UNLOAD, {"lora_name": "pirate"})
    declared = await gate.ask("POST", UNLOAD, {"lora_name": "poet"})
    assert (missing.status_code, again.status_code, declared.status_code) == (404, 404, 409)
    assert error(again)["message"] == "The lora adapter 'pirate' cannot be found."
    assert len(given) == 1


async def test_one_of_the_same_name_takes_its_place_only_if_that_is_said(
    land: Estate, gate: Gateway, given: list[dict[str, Any]]
) -> None:
    await load(gate)
    adapter(land.directory.parent / "adapters" / "pirate-2", lora_alpha=4)

    refused = await load(gate, path="pirate-2")
    replaced = await load(gate, path="pirate-2", load_inplace=True)
    await gate.http.post("/v1/chat/completions", json=question("pirate", "hello"))

    assert (refused.status_code, replaced.status_code) == (400, 200)
    assert "has already been loaded" in error(refused)["message"]
    assert [params["adapter_source"]["path"] for params in given] == ["pirate", "pirate-2", "pirate-2"]


async def test_without_the_token_nothing_is_changed(gate: Gateway, given: list[dict[str, Any]]) -> None:
    for path, body in ((LOAD, {"lora_name": "pirate", "lora_path": "pirate"}), (UNLOAD, {"lora_name": "poet"})):
        for token in ("", "wrong"):
            assert (await gate.ask("POST", path, body, token=token)).status_code == 401
    assert given == []
    assert await gate.store.adapters() == {}


async def test_it_is_off_unless_a_directory_is_allowed(land: Estate, given: list[dict[str, Any]]) -> None:
    refused = await load(land.gateway(adapters_dir=""))

    assert (refused.status_code, error(refused)["code"]) == (403, "forbidden")
    assert "set OMNIBUS_GATEWAY_ADAPTERS_DIR" in error(refused)["message"]
    assert given == []


@pytest.mark.parametrize(
    ("wanted", "status", "fault"),
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
    land: Estate, gate: Gateway, given: list[dict[str, Any]], wanted: dict[str, Any], status: int, fault: str
) -> None:
    adapter(land.directory.parent / "adapters" / "broken", use_dora=True)

    refused = await load(gate, **{"name": "pirate", "path": "pirate", **_renamed(wanted)})

    assert (refused.status_code, fault in error(refused)["message"]) == (status, True), refused.text
    assert await gate.store.adapters() == {}


def _renamed(wanted: dict[str, Any]) -> dict[str, Any]:
    return {{"lora_name": "name", "lora_path": "path"}.get(name, name): value for name, value in wanted.items()}


async def test_an_adapter_of_a_model_that_is_gone_serves_nobody_until_the_model_is_back(
    land: Estate, gate: Gateway, given: list[dict[str, Any]]
) -> None:
    await load(gate)
    plan = land.home.router.plan

    land.home.serve(VL, OMNI)
    gone = await gate.http.post("/v1/chat/completions", json=question("pirate", "hello"))
    land.home.router.plan = plan
    back = await gate.http.post("/v1/chat/completions", json=question("pirate", "hello"))

    assert (gone.status_code, back.status_code) == (404, 200)


async def test_an_app_cannot_bring_a_model_of_an_adapters_name(
    land: Estate, gate: Gateway, given: list[dict[str, Any]]
) -> None:
    await load(gate)
    land.write("loud", LOUD, model="pirate")

    refused = await gate.ask("POST", "/v1/apps", {"source": {"module": "loud", "directory": "."}})

    assert (refused.status_code, "is an adapter" in error(refused)["message"]) == (409, True), refused.text
