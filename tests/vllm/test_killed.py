"""A second vLLM thinker continues the answer of a killed one.

The whole system runs.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from omnibus.bus import subjects
from tests.e2e.questions import make_image, make_question
from tests.e2e.system import VL, System, declare_model, start_system
from tests.e2e.watch import Watch

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.e2e]

QUESTION = make_question(make_image(1), "describe the image")
TOKENS, KNOWN = 800, 250
_BACK_WITHIN = 300.0  # seconds; an engine that was killed imports and loads again, on a busy machine
OPTIONS = {
    "E": {"components": ["vision"], "service": "encoder"},
    "L": {"components": ["thinker"], "service": "llm", "engine": "omnibus_engines:vllm", "replicas": 2},
}
THINKERS = [f"qwen2_5-vl-tiny-L-{number}" for number in range(2)]


class VllmAnswer(NamedTuple):
    """One streamed answer; ``tokens`` are those of its usage."""

    id: str
    text: str
    finish: str
    tokens: dict[str, int]


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, vl: Path) -> Iterator[System]:
    model = declare_model("qwen2_5_vl", vl, options=OPTIONS, paths=[{"options": ["E", "L"], "share": 1}])
    settings = {"OMNIBUS_VLLM_KV_MIB": "32", "OMNIBUS_GATEWAY_QUARANTINE": "0"}  # one input is killed repeatedly
    with start_system(tmp_path_factory.mktemp("killed"), {VL: model}, **settings) as system:
        yield system


@pytest.fixture(autouse=True)
async def pids(system: System) -> AsyncIterator[dict[str, int]]:
    executor_pids = await system.whole(_BACK_WITHIN)
    await system.becomes_ready()
    yield executor_pids
    await system.ledger_is_empty()


async def stream_answer(http: httpx.AsyncClient, **more: Any) -> VllmAnswer:
    body = {"model": VL, "messages": QUESTION.messages, "max_tokens": TOKENS, "ignore_eos": True, "seed": 5, **more}
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    text, finish, tokens = "", "", {}
    async with http.stream("POST", "/v1/chat/completions", json=request) as answer:
        id = answer.headers["x-request-id"]
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                assert "error" not in event, event
                tokens = event.get("usage") or tokens
                for choice in event["choices"]:
                    text += choice["delta"].get("content") or ""
                    finish = choice["finish_reason"] or finish
    return VllmAnswer(id, text, finish, tokens)


async def count_generated(system: System, executor: str) -> int:
    """Tokens that the engine of ``executor`` has generated."""
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    async with asyncio.timeout(10), system.bus() as bus:
        stop = await bus.subscribe("omnibus.test.stats", lambda delivery: queue.put_nowait(delivery.data))
        bus.publish("$SRV.STATS", b"", reply="omnibus.test.stats")
        while True:
            stats = json.loads(await queue.get())
            if (stats.get("metadata") or {}).get("executor") == executor:
                await stop()
                return int(stats["endpoints"][0]["data"]["tokens"])


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param({"temperature": 0}, id="greedy"),
        pytest.param({"temperature": 1.0, "top_p": 0.9}, id="sampled", marks=pytest.mark.nightly),
    ],
)
async def test_an_answer_goes_on_in_the_other_engine_behind_its_tokens(
    system: System, pids: dict[str, int], sampling: dict[str, Any]
) -> None:
    async with system.http() as http:
        whole = await stream_answer(http, **sampling)
        async with Watch.on(system) as watch:
            asking = asyncio.create_task(stream_answer(http, **sampling))
            delivery = await watch.first(subjects.task_subject("think-qwen2_5-vl-tiny-thinker"))
            victim = delivery.subject.rpartition(".")[2]
            [survivor] = {*THINKERS} - {victim}
            before = await count_generated(system, survivor)
            await watch.until(lambda: sum(len(watch.ids(id)) for id in list_invocations(watch)) >= KNOWN)
            os.kill(pids[victim], signal.SIGKILL)
            answer = await asking

    assert (answer.text, answer.finish, answer.tokens) == (whole.text, whole.finish, whole.tokens)
    assert answer.tokens["completion_tokens"] == TOKENS
    [move] = (await system.record(answer.id))[1]["moves"]
    [resume_count] = [count for output, count in move["resumed"].items() if output.endswith(".text")]
    assert move["again"] == [1], "not the encoder"
    assert resume_count >= KNOWN
    again = await count_generated(system, survivor) - before - (TOKENS - resume_count)
    assert again <= 0.2 * resume_count


def list_invocations(watch: Watch) -> set[str]:
    return {one.inv for one in watch.replies()}
