"""Two nodes of ``omnibus up`` with UCX: a path over both answers like one executor."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omnibus_sidecar.peers.links import SMALL_BYTES
from tests.e2e import questions
from tests.e2e.system import VL, System, declare_model, start_system

pytestmark = [pytest.mark.e2e, pytest.mark.ucx]


async def send_question(system: System, route: str, gateway: int) -> str:
    """Answer about a different image for each gateway, because encoders cache images."""
    question = questions.make_question(questions.make_image(gateway, 420, 336), "What is it?")
    body: dict[str, Any] = {"model": VL, "messages": question.messages, "max_tokens": 12, "temperature": 0, "seed": 1}
    async with system.http(gateway) as http:
        response = await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": route})
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["message"]["content"])


async def over_ucx(system: System) -> tuple[int, int]:
    """Bytes that both nodes have pulled over UCX, and failed transfers."""
    nbytes = failures = 0
    for node in range(2):
        async with system.tensors(node) as tensors:
            stats = await tensors.stats()
        nbytes += sum(stats["ucx_bytes_by_node"].values())
        failures += sum(stats["ucx_failures_by_node"].values())
    return nbytes, failures


@pytest.fixture
def pair(tmp_path: Path, vl_checkpoint: Path) -> Iterator[System]:
    models = {VL: declare_model("qwen2_5_vl", vl_checkpoint)}
    # Shared memory, which UCX would find, is none between nodes.
    settings = {"OMNIBUS_SIDECAR_TRANSPORT": "ucx", "UCX_TLS": "tcp"}
    with start_system(tmp_path, models, "--nodes", "2", "--gateways", "2", **settings) as system:
        yield system


async def test_a_path_over_two_nodes_answers_as_one_executor_does(pair: System):
    await pair.whole()
    await pair.becomes_ready()

    apart = [await send_question(pair, "E>L", gateway) for gateway in range(2)]
    together = [await send_question(pair, "EL", gateway) for gateway in range(2)]

    assert apart == together
    nbytes, failures = await over_ucx(pair)
    assert nbytes > SMALL_BYTES
    assert failures == 0
    for node in range(2):
        await pair.ledger_is_empty(5.0, node)
