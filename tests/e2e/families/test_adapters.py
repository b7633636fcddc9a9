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
from tests.e2e.questions import make_question
from tests.e2e.system import System, start_system
from tests.lora import merge_adapter, write_adapter
from tests.oracles import language as oracle

pytestmark = pytest.mark.e2e

TOKENS = 16
BASE, NAMES = "qwen2-tiny", ("pirate", "poet")
QUESTION = make_question("hello world, how are you today?")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The base model, and each adapter's merged checkpoint next to it."""
    directory = tmp_path_factory.mktemp("checkpoints")
    paths = {BASE: tiny.build("qwen2", directory / "base")}
    for seed, name in enumerate(NAMES, 1):
        adapter = write_adapter(paths[BASE], directory / name, seed)
        paths[name] = merge_adapter(paths[BASE], adapter, directory / f"merged-{name}")
    return paths


@pytest.fixture(scope="module")
def captain_checkpoint(checkpoints: dict[str, Path]) -> Path:
    """Merged checkpoint of an undeclared adapter below the allowed directory."""
    base = checkpoints[BASE]
    adapter = write_adapter(base, base.parent / "allowed" / "captain", 3, rank=6, targets=("k_proj", "up_proj"))
    return merge_adapter(base, adapter, base.parent / "merged-captain")


@pytest.fixture(scope="module")
def system(
    tmp_path_factory: pytest.TempPathFactory, checkpoints: dict[str, Path], captain_checkpoint: Path
) -> Iterator[System]:
    deployment = catalog.split_declaration("qwen2", str(checkpoints[BASE]), "P>D", "PD")
    deployment["adapters"] = {name: str(checkpoints[BASE].with_name(name)) for name in NAMES}
    allowed_directory = str(captain_checkpoint.parent / "allowed")
    settings = {"OMNIBUS_GATEWAY_ADAPTERS_DIR": allowed_directory, "OMNIBUS_EXECUTOR_ADAPTERS_DIR": allowed_directory}
    directory = tmp_path_factory.mktemp("adapters")
    with start_system(directory, {BASE: deployment}, "--gateways", "2", **settings) as system:
        yield system


@pytest.fixture(autouse=True)
async def wait_for_executors(system: System) -> None:
    await system.whole()
    await system.becomes_ready()


async def send_question(system: System, name: str, path: str, **more: Any) -> tuple[str, str, str]:
    """The model, the text and the id of an answer."""
    async with system.client() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=name,
            messages=QUESTION.messages,
            **{"max_tokens": TOKENS, "temperature": 0, **more},
            extra_headers={"x-omnibus-path": path},
        )
    completion = raw.parse()
    return completion.model, completion.choices[0].message.content or "", raw.headers["x-request-id"]


def expected_text(checkpoints: dict[str, Path], name: str) -> str:
    [(_, words)] = QUESTION.parts
    return oracle.generate_answer(checkpoints[name], [{"role": "user", "content": words}], TOKENS)[1]


@pytest.mark.parametrize("path", ["P>D", "PD"])
async def test_requests_at_the_same_time_are_answered_by_the_adapters_that_they_name(
    system: System, checkpoints: dict[str, Path], path: str
):
    answers = await asyncio.gather(*(send_question(system, name, path) for name in checkpoints))

    assert [result[:2] for result in answers] == [(name, expected_text(checkpoints, name)) for name in checkpoints]
    assert len({text for _, text, _ in answers}) == len(checkpoints)
    await system.ledger_is_empty()


async def test_adapters_are_listed_with_the_model_that_they_adapt(system: System):
    async with system.http() as http:
        models = (await http.get("/v1/models")).json()["data"]
        one = (await http.get("/v1/models/poet")).json()
        missing = await http.post(
            "/v1/chat/completions", json={"model": "captain", "messages": [{"role": "user", "content": "hello"}]}
        )

    assert {each["id"]: each["parent"] for each in models} == {BASE: None, "pirate": BASE, "poet": BASE}
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
    assert [choice.message.content for choice in several.choices] == [expected_text(checkpoints, "poet")] * 2
    assert plain[0] != plain[1]


async def test_a_record_names_the_adapter_and_is_replayed_with_it(system: System):
    _, _, id = await send_question(system, "pirate", "P>D", temperature=0.8, seed=3)
    begin, _ = await system.record(id)

    process = system.command("replay", id)
    output, _ = await asyncio.to_thread(process.communicate, timeout=60)

    adapters = [node["inputs"]["params"]["adapter"] for node in json.loads(begin)["nodes"]]
    assert adapters == ["pirate", "pirate"]
    assert process.returncode == 0
    assert "identical to the recorded answer" in output


async def run_command(system: System, *arguments: str) -> str:
    """The output of an ``omnibus`` command that succeeds."""
    process = system.command(*arguments)
    output, _ = await asyncio.to_thread(process.communicate, timeout=60)
    assert process.returncode == 0, output
    return output


async def wait_for_adapter(system: System, gateway: int, name: str, status: int) -> dict[str, Any]:
    """Poll a gateway until it answers about an adapter with ``status``."""
    async with asyncio.timeout(10), system.http(gateway) as http:
        while (response := await http.get(f"/v1/models/{name}")).status_code != status:
            await asyncio.sleep(0.05)
        return dict(response.json())


async def text_at(system: System, gateway: int, name: str, path: str) -> str:
    """The text that a gateway answers with."""
    body = {"model": name, "messages": QUESTION.messages, "max_tokens": TOKENS, "temperature": 0}
    async with system.http(gateway) as http:
        answer = await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": path})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


async def test_an_adapter_is_loaded_and_unloaded_while_the_system_serves(
    system: System, checkpoints: dict[str, Path], captain_checkpoint: Path
):
    truth = expected_text({"captain": captain_checkpoint}, "captain")
    assert "is loaded" in await run_command(system, "adapters", "add", "captain", "captain")

    for gateway in range(2):
        assert (await wait_for_adapter(system, gateway, "captain", 200))["parent"] == BASE
        for path in ("P>D", "PD"):
            assert await text_at(system, gateway, "captain", path) == truth
    for name in (BASE, "pirate"):
        assert await text_at(system, 0, name, "PD") == expected_text(checkpoints, name)

    pids = await system.whole()
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(90):  # executors that have just started load it with their first request
        while not pids.items().isdisjoint((await system.whole()).items()):
            await asyncio.sleep(0.2)
    await system.becomes_ready()
    assert await text_at(system, 1, "captain", "P>D") == truth

    assert "captain  qwen2-tiny  captain" in await run_command(system, "adapters", "list")
    assert "is unloaded" in await run_command(system, "adapters", "remove", "captain")
    for gateway in range(2):
        await wait_for_adapter(system, gateway, "captain", 404)
    await system.ledger_is_empty()
