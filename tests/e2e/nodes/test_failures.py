"""Requests fail over when the sidecar of a node dies or freezes."""

import asyncio
import json
import signal
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.nodes.conftest import NODES, PAINTER
from tests.e2e.nodes.test_same_answers import chat_body, nothing_is_left, post_json
from tests.e2e.questions import VL_QUESTIONS
from tests.e2e.system import System

pytestmark = pytest.mark.e2e

#: The steps take less than a second: on a busy machine they may be over before the denoiser is killed.
ATTEMPTS = 4
TYPED = {"node_unreachable", "unavailable", "stage_unavailable", "stale_handle", "stage_failed"}


async def send_question(system: System, gateway: int) -> tuple[int, Any]:
    async with system.http(gateway) as http:
        answer = await http.post("/v1/chat/completions", json=chat_body(VL_QUESTIONS["image"]))
    return answer.status_code, answer.json()


async def ask_until(system: System, end: asyncio.Event) -> list[tuple[int, Any]]:
    """Send requests to both gateways in sequence until ``end``."""
    answers = []
    while not end.is_set():
        answers += await asyncio.gather(send_question(system, 0), send_question(system, 1))
    return answers


@pytest.mark.parametrize(
    ("how", "node"),
    [(signal.SIGKILL, 0), (signal.SIGSTOP, 1), (signal.SIGKILL, NODES - 1)]
    + [
        pytest.param(how, node, marks=pytest.mark.nightly)
        for how, node in [(signal.SIGSTOP, 0), (signal.SIGKILL, 1), (signal.SIGSTOP, NODES - 1)]
    ],
)
async def test_requests_are_answered_or_refused_by_name_and_serve_again(nodes: System, node: int, how: signal.Signals):
    expected_message = (await post_json(nodes, "/v1/chat/completions", chat_body(VL_QUESTIONS["image"]), "EL"))[
        "choices"
    ][0]["message"]
    end = asyncio.Event()
    asking = asyncio.create_task(ask_until(nodes, end))
    await asyncio.sleep(0.5)

    nodes.sidecar(node).send_signal(how)
    await asyncio.sleep(12.0)
    end.set()
    answers = await asyncio.wait_for(asking, 120.0)

    for status, body in answers:
        if status == 200:
            assert body["choices"][0]["message"]["content"] == expected_message["content"]
        else:
            assert status in (502, 503), json.dumps(body)
            assert body["error"]["code"] in TYPED, json.dumps(body)
    await nodes.whole()
    await nodes.becomes_ready()
    for gateway in (0, 1):
        async with asyncio.timeout(60):
            while (await send_question(nodes, gateway))[0] != 200:
                await asyncio.sleep(0.2)
    await nothing_is_left(nodes)


async def count_retained(system: System) -> int:
    """Bytes retained on all nodes for which no read is open."""
    total = 0
    for node in range(NODES):
        async with system.tensors(node) as tensors:
            total += int((await tensors.stats())["retained_bytes"])
    return total


async def draw_without_denoiser(nodes: System, gateway: int, body: dict[str, Any]) -> httpx.Response:
    """Answer an image request whose denoiser is killed.

    The fault occurs once the embedding of the prompt is retained.
    """
    everybody = await nodes.whole()
    async with nodes.http(gateway) as http:
        asking = asyncio.create_task(
            http.post("/v1/images/generations", json=body, headers={"x-omnibus-path": "T>D>V"})
        )
        async with asyncio.timeout(30):
            while not (asking.done() or await count_retained(nodes)):
                await asyncio.sleep(0.02)
        psutil.Process(everybody[f"{PAINTER}-D-0"]).send_signal(signal.SIGKILL)
        return await asyncio.wait_for(asking, 120.0)


@pytest.mark.parametrize("gateway", [0, 1])
async def test_a_lost_denoiser_begins_again_from_what_lies_on_other_nodes(nodes: System, gateway: int):
    body = {"model": PAINTER, "prompt": "a cat on a mat", "size": "64x64", "steps": 200, "seed": 1}
    truth = await post_json(nodes, "/v1/images/generations", body, "TDV")
    for _ in range(ATTEMPTS):
        answer = await draw_without_denoiser(nodes, gateway, body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["data"][0]["b64_json"] == truth["data"][0]["b64_json"]
        _, record = await nodes.record(answer.headers["x-request-id"])
        if record["attempts"] > 1:
            break

    assert record["attempts"] == 2
    assert record["moves"][0]["again"] == [1, 2]  # not the prompt's encoder
    await nodes.whole()
    await nodes.becomes_ready()
    await nothing_is_left(nodes)
