"""A path over several nodes answers like one executor.

It leaves nothing in any arena.
"""

import asyncio
from typing import Any

import pytest

from tests.e2e.nodes.conftest import NODES, PAINTER
from tests.e2e.omni.speech import assert_same_speech, choose_path, make_speech_body, read_spoken
from tests.e2e.questions import OMNI_QUESTIONS, VL_QUESTIONS, Question
from tests.e2e.system import VL, System

pytestmark = pytest.mark.e2e

APART = "EV>EA>Th>Ta>V"


async def nothing_is_left(system: System) -> None:
    for node in range(NODES):
        await system.ledger_is_empty(5.0, node)


async def read_pulled(system: System) -> list[int]:
    """Bytes that each node has pulled from others."""
    counts = []
    for node in range(NODES):
        async with system.tensors(node) as tensors:
            counts.append(int((await tensors.stats()).get("pulled_bytes_total", 0)))
    return counts


async def post_json(system: System, path: str, body: Any, route: str, gateway: int = 0) -> Any:
    async with system.http(gateway) as http:
        answer = await http.post(path, json=body, headers={"x-omnibus-path": route})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-omnibus-path"] == route
    return answer.json()


def chat_body(question: Question) -> dict[str, Any]:
    return {"model": VL, "messages": question.messages, "max_tokens": 12, "temperature": 0, "seed": 1}


@pytest.mark.parametrize("gateway", [0, 1])
@pytest.mark.parametrize("name", ["image", "video"])
async def test_an_encoder_on_another_node_gives_the_same_answer(nodes: System, name: str, gateway: int):
    body = chat_body(VL_QUESTIONS[name])
    before = await read_pulled(nodes)

    apart = await post_json(nodes, "/v1/chat/completions", body, "E>L", gateway)
    together = await post_json(nodes, "/v1/chat/completions", body, "EL", gateway)

    assert apart["choices"][0]["message"]["content"] == together["choices"][0]["message"]["content"]
    assert sum(await read_pulled(nodes)) > sum(before)
    await nothing_is_left(nodes)


@pytest.mark.parametrize("name", ["text", "audio"])
async def test_speech_over_three_nodes_sounds_as_from_one_executor(nodes: System, name: str):
    question = OMNI_QUESTIONS[name]

    apart = await post_json(
        nodes, "/v1/chat/completions", make_speech_body(question), choose_path(APART, question, speech=True)
    )
    together = await post_json(
        nodes, "/v1/chat/completions", make_speech_body(question), choose_path("M", question, speech=True)
    )

    assert_same_speech(read_spoken(apart), read_spoken(together))
    await nothing_is_left(nodes)


async def test_a_picture_over_three_nodes_is_the_one_of_one_executor(nodes: System):
    body = {"model": PAINTER, "prompt": "a cat on a mat", "size": "64x64", "steps": 3, "seed": 1}

    apart = await post_json(nodes, "/v1/images/generations", body, "T>D>V")
    together = await post_json(nodes, "/v1/images/generations", body, "TDV", gateway=1)

    assert apart["data"][0]["b64_json"] == together["data"][0]["b64_json"]
    await nothing_is_left(nodes)


async def test_many_at_once_cross_without_mixing(nodes: System):
    async def ask_question(name: str, route: str) -> str:
        answer = await post_json(nodes, "/v1/chat/completions", chat_body(VL_QUESTIONS[name]), route)
        return str(answer["choices"][0]["message"]["content"])

    alone = {name: await ask_question(name, "EL") for name in ("image", "video")}

    answers = await asyncio.gather(*(ask_question(name, "E>L") for name in ("image", "video") * 8))

    assert answers == [alone[name] for name in ("image", "video") * 8]
    await nothing_is_left(nodes)
