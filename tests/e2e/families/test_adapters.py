"""LoRA adapters of one model: each is called by its own name and answers as the model that it was merged into."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omnibus.families import catalog
from omnibus_models import tiny
from tests.e2e.questions import ask
from tests.e2e.system import System, running
from tests.lora import merge_adapter, write_adapter
from tests.oracles import language as oracle

pytestmark = pytest.mark.e2e

TOKENS = 16
BASE, NAMES = "qwen2-tiny", ("pirate", "poet")
QUESTION = ask("hello world, how are you today?")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The base model, and each adapter's merged checkpoint next to it."""
    directory = tmp_path_factory.mktemp("checkpoints")
    found = {BASE: tiny.build("qwen2", directory / "base")}
    for seed, name in enumerate(NAMES, 1):
        adapter = write_adapter(found[BASE], directory / name, seed)
        found[name] = merge_adapter(found[BASE], adapter, directory / f"merged-{name}")
    return found


@pytest.fixture(scope="module")
def captain(checkpoints: dict[str, Path]) -> Path:
    """Merged checkpoint of an undeclared adapter below the allowed directory."""
    base = checkpoints[BASE]
    adapter = write_adapter(base, base.parent / "allowed" / "captain", 3, rank=6, targets=("k_proj", "up_proj"))
    return merge_adapter(base, adapter, base.parent / "merged-captain")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, checkpoints: dict[str, Path], captain: Path) -> Iterator[System]:
    declared = catalog.split_declaration("qwen2", str(checkpoints[BASE]), "P>D", "PD")
    declared["adapters"] = {name: str(checkpoints[BASE].with_name(name)) for name in NAMES}
    allowed = str(captain.parent / "allowed")
    settings = {"OMNIBUS_GATEWAY_ADAPTERS_DIR": allowed, "OMNIBUS_EXECUTOR_ADAPTERS_DIR": allowed}
    directory = tmp_path_factory.mktemp("adapters")
    with running(directory, {BASE: declared}, "--gateways", "2", **settings) as system:
        yield system


@pytest.fixture(autouse=True)
async def everybody(system: System) -> None:
    await system.whole()
    await system.becomes_ready()


async def answer(system: System, name: str, path: str, **more: Any) -> tuple[str, str, str]:
    """The model, the text and the id of an answer."""
    async with system.client() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=name,
            messages=QUESTION.messages,
            **{"max_tokens": TOKENS, "temperature": 0, **more},
            extra_headers={"x-omnibus-path": path},
        )
    found = raw.parse()
    return found.model, found.choices[0].message.content or "", raw.headers["x-request-id"]


def expected(checkpoints: dict[str, Path], name: str) -> str:
    [(_, words)] = QUESTION.parts
    return oracle.answer(checkpoints[name], [{"role": "user", "content": words}], TOKENS)[1]


@pytest.mark.parametrize("path", ["P>D", "PD"])
async def test_requests_at_the_same_time_are_answered_by_the_adapters_that_they_name(
    system: System, checkpoints: dict[str, Path], path: str
):
    answers = await asyncio.gather(*(answer(system, name, path) for name in checkpoints))

    assert [found[:2] for found in answers] == [(name, expected(checkpoints, name)) for name in checkpoints]
    assert len({text for _, text, _ in answers}) == len(checkpoints)
    await system.ledger_is_empty()


async def test_adapters_are_listed_with_the_model_that_they_adapt(system: System):
    async with system.http() as http:
        listed = (await http.get("/v1/models")).json()["data"]
        one = (await http.get("/v1/models/poet")).json()
        missing = await http.post(
            "/v1/chat/completions", json={"model": "captain", "messages": [{"role": "user", "content": "hello"}]}
        )

    assert {each["id"]: each["parent"] for each in listed} == {BASE: None, "pirate": BASE, "poet": BASE}
    assert (one["root"], one["output_modalities"]) == ("poet", ["text"])
    assert missing.status_code == 404
    assert "known: pirate, poet, qwen2-tiny" in missing.json()["error"]["message"]


async def test_several_answers_and_completions_are_the_adapters(system: System, checkpoints: dict[str, Path]):
    async with system.client() as client:
        several = await client.chat.completions.create(
            model="poet", messages=QUESTION.messages, max_tokens=TOKENS, temperature=0, n=2
        )
        plain = [
            (await client.completions.create(model=name, prompt="hello", max_tokens=8, temperature=0)).choices[0].text
            for name in (BASE, "pirate")
        ]

    assert several.model == "poet"
    assert [choice.message.content for choice in several.choices] == [expected(checkpoints, "poet")] * 2
    assert plain[0] != plain[1]


async def test_a_record_names_the_adapter_and_is_replayed_with_it(system: System):
    _, _, id = await answer(system, "pirate", "P>D", temperature=0.8, seed=3)
    begin, _ = await system.record(id)

    process = system.command("replay", id)
    output, _ = await asyncio.to_thread(process.communicate, timeout=60)

    adapters = [node["inputs"]["params"]["adapter"] for node in json.loads(begin)["nodes"]]
    assert adapters == ["pirate", "pirate"]
    assert process.returncode == 0
    assert "identical to the recorded answer" in output


async def command(system: System, *arguments: str) -> str:
    """The output of an ``omnibus`` command that succeeds."""
    process = system.command(*arguments)
    output, _ = await asyncio.to_thread(process.communicate, timeout=60)
    assert process.returncode == 0, output
    return output


async def listed(system: System, gateway: int, name: str, status: int) -> dict[str, Any]:
    """Poll a gateway until it answers about an adapter with ``status``."""
    async with asyncio.timeout(10), system.http(gateway) as http:
        while (found := await http.get(f"/v1/models/{name}")).status_code != status:
            await asyncio.sleep(0.05)
        return dict(found.json())


async def text_at(system: System, gateway: int, name: str, path: str) -> str:
    """The text that a gateway answers with."""
    body = {"model": name, "messages": QUESTION.messages, "max_tokens": TOKENS, "temperature": 0}
    async with system.http(gateway) as http:
        answer = await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": path})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


async def test_an_adapter_is_loaded_and_unloaded_while_the_system_serves(
    system: System, checkpoints: dict[str, Path], captain: Path
):
    truth = expected({"captain": captain}, "captain")
    assert "is loaded" in await command(system, "adapters", "add", "captain", "captain")

    for gateway in range(2):
        assert (await listed(system, gateway, "captain", 200))["parent"] == BASE
        for path in ("P>D", "PD"):
            assert await text_at(system, gateway, "captain", path) == truth
    for name in (BASE, "pirate"):
        assert await text_at(system, 0, name, "PD") == expected(checkpoints, name)

    pids = await system.whole()
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(90):  # executors that have just started load it with their first request
        while not pids.items().isdisjoint((await system.whole()).items()):
            await asyncio.sleep(0.2)
    await system.becomes_ready()
    assert await text_at(system, 1, "captain", "P>D") == truth

    assert "captain  qwen2-tiny  captain" in await command(system, "adapters", "list")
    assert "is unloaded" in await command(system, "adapters", "remove", "captain")
    for gateway in range(2):
        await listed(system, gateway, "captain", 404)
    await system.ledger_is_empty()
