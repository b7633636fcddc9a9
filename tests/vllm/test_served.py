"""The whole system with a vLLM thinker and a separate encoder.

It includes the gateway, and the death of the engine.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from tests import models_oracle as oracle
from tests.e2e.questions import VL_QUESTIONS
from tests.e2e.system import VL, System, declare_model, missing_stages, start_system
from tests.e2e.vl.test_client_gone import LONG, tokens_after_leaving
from tests.e2e.watch import Watch
from tests.vllm.conftest import engine_core

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.e2e]

TOKENS = 24
SLOW = {
    "model": VL,
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 3900,
    "ignore_eos": True,
    "temperature": 0,
}
OPTIONS = {
    "E": {"components": ["vision"], "service": "encoder"},
    "L": {"components": ["thinker"], "service": "llm", "engine": "omnibus_engines:vllm"},
}


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, vl: Path) -> Iterator[System]:
    model = declare_model("qwen2_5_vl", vl, options=OPTIONS, paths=[{"options": ["E", "L"], "share": 1}])
    settings = {"OMNIBUS_VLLM_KV_MIB": "32", "OMNIBUS_UP_FORK_SERVER": "0"}  # its executors start as in production
    with start_system(tmp_path_factory.mktemp("served"), {VL: model}, **settings) as system:
        yield system


@pytest.fixture(autouse=True)
async def ready_system(system: System) -> AsyncIterator[None]:
    await system.whole()
    await system.becomes_ready()
    yield
    await system.ledger_is_empty()


@pytest.mark.cell("vllm", "qwen2_5_vl", "tokens", shape="E>L")
@pytest.mark.parametrize("name", VL_QUESTIONS)
async def test_ids_and_text_are_those_of_the_whole_model(system: System, vl: Path, name: str) -> None:
    question = VL_QUESTIONS[name]
    ids, text = oracle.vl_answer(vl, question.plain, question.media, TOKENS)

    async with Watch.on(system) as watch, system.client() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model=VL, messages=question.messages, max_tokens=TOKENS, temperature=0
        )
        await watch.end(raw.headers["x-request-id"])

    assert raw.parse().choices[0].message.content == text
    assert watch.ids(raw.headers["x-request-id"]) == ids


async def test_a_client_that_leaves_stops_the_engine(system: System) -> None:
    late = [await tokens_after_leaving(system, "E>L") for _ in range(3)]

    # A step of this model is shorter than a busy machine takes to deliver a message, hence the best of three.
    assert min(late) <= 1
    assert max(late) < LONG / 10


async def test_when_the_engine_dies_the_executor_lives_and_serves_again(system: System) -> None:
    before = await system.whole()
    async with Watch.on(system) as watch, system.http() as http:
        asking = asyncio.create_task(http.post("/v1/chat/completions", json=SLOW))
        await watch.first("omnibus.reply.")
        engine_core(system.processes()).send_signal(signal.SIGKILL)
        down = asyncio.create_task(missing_stages(system, VL, why=""))
        answer = await asking

    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["stage"]) == (503, "stage_unavailable", "thinker")
    assert "thinker" in await down
    await system.becomes_ready()
    async with system.client() as client:
        again = await client.chat.completions.create(
            model=VL, messages=[{"role": "user", "content": "hello"}], max_tokens=4, temperature=0
        )
    assert again.usage is not None
    assert again.usage.completion_tokens > 0
    assert await system.whole() == before


async def test_when_the_executor_is_killed_its_engine_goes_with_it(system: System) -> None:
    core = engine_core(system.processes())
    pids = await system.whole()

    psutil.Process(pids[next(name for name in pids if name.endswith("L-0"))]).kill()

    await asyncio.to_thread(core.wait, 10)
    assert await system.whole() != pids
