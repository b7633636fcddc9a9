"""Operators' views of nodes.

They are the gateway's state, ``omnibus top``, and the costs in ``omnibus show``.
"""

import asyncio
import json
import signal
import time
from typing import Any

import httpx
import numpy as np
import pytest

from omnibus.errors import NodeUnreachable
from tests.e2e.nodes.conftest import NODES
from tests.e2e.nodes.test_same_answers import chat_body
from tests.e2e.questions import VL_QUESTIONS
from tests.e2e.system import System

pytestmark = pytest.mark.e2e

PATIENCE = 30.0  # seconds


async def ask_apart(system: System) -> str:
    """Have an image answered by executors of two nodes; returns the id of the request."""
    async with system.http() as http:
        headers = {"x-omnibus-path": "E>L"}
        answer = await http.post("/v1/chat/completions", json=chat_body(VL_QUESTIONS["image"]), headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.headers["x-request-id"]


async def first_state(http: httpx.AsyncClient, system: System) -> dict[str, Any]:
    """The next state that the gateway's console sends."""
    headers = {"authorization": f"Bearer {system.state.admin_token}"}
    async with http.stream("GET", "/v1/console/events", headers=headers) as events:
        async for line in events.aiter_lines():
            if line.startswith("data:"):
                return json.loads(line.removeprefix("data:"))
    raise AssertionError("the stream ended without a state")


async def run_command(system: System, *arguments: str) -> str:
    process = await asyncio.to_thread(system.command, *arguments)
    output, _ = await asyncio.to_thread(process.communicate)
    assert process.returncode == 0, output
    return output


async def test_the_gateway_shows_nodes_with_who_is_on_them_and_what_crossed(nodes: System):
    await ask_apart(nodes)
    async with asyncio.timeout(PATIENCE), nodes.http() as http:
        # Sidecars report each second, so the latest transfers appear a moment later.
        while not (state := await first_state(http, nodes))["links"] or len(state["nodes"]) < NODES:
            await asyncio.sleep(0.2)

    names = [nodes.node_name(node) for node in range(NODES)]
    assert [each["node"] for each in state["nodes"]] == sorted(names)
    for each in state["nodes"]:
        assert (each["state"], each["transport"]) == ("ready", "tcp")
        assert each["address"].startswith("127.0.0.1:")
        assert 0 <= each["used"] <= each["size"]
        assert each["executors"]
    assert {executor["id"] for each in state["nodes"] for executor in each["executors"]} == nodes.executors
    assert sum(len(each["gateways"]) for each in state["nodes"]) == len(nodes.urls)
    for link in state["links"]:
        assert {link["source"], link["reader"]} <= set(names)
        assert (link["nbytes"] > 0, link["unreachable"]) == (True, False)


async def test_top_shows_nodes_and_links(nodes: System):
    await ask_apart(nodes)

    lines = (await run_command(nodes, "top", "--once")).splitlines()

    heads = {line.split()[0]: index for index, line in enumerate(lines) if line.startswith(("NODES", "LINKS"))}
    rows = [line.split()[:2] for line in lines[heads["NODES"] + 1 : heads["NODES"] + 1 + NODES]]
    assert rows == [[name, "ready"] for name in sorted(nodes.node_name(node) for node in range(NODES))]
    assert "→" in lines[heads["LINKS"] + 1]
    assert lines[heads["LINKS"] + 1].endswith("ok")


async def test_a_pair_is_unreachable_until_its_node_answers_again(nodes: System):
    """A frozen sidecar at the encoder's node prevents pulls by other nodes."""
    id = await ask_apart(nodes)
    waterfall = json.loads(await run_command(nodes, "show", id, "--json"))["waterfall"]
    pull = next(pull for pull in waterfall["pulls"] if pull["source"] >= 0)
    pair = (pull["from_node"], pull["to_node"])
    source, reader = ([nodes.node_name(node) for node in range(NODES)].index(name) for name in pair)
    headers = {"x-omnibus-path": "E>L"}

    async def is_unreachable() -> bool | None:
        async with nodes.http() as http:
            links = (await first_state(http, nodes))["links"]
        return next((link["unreachable"] for link in links if (link["source"], link["reader"]) == pair), None)

    async with nodes.tensors(source) as producer, nodes.tensors(reader) as consumer:
        until = time.time() + PATIENCE
        handle = await producer.put(np.ones(1000, np.uint8), invocation="cut", deadline=until)
        nodes.sidecar(source).send_signal(signal.SIGSTOP)
        with pytest.raises(NodeUnreachable):
            await consumer.open_tensor(handle, invocation="cut", deadline=until)
    async with asyncio.timeout(PATIENCE):
        while not await is_unreachable():
            await asyncio.sleep(0.2)
    [line] = [line for line in (await run_command(nodes, "top", "--once")).splitlines() if " → ".join(pair) in line]
    assert line.endswith("unreachable")

    await nodes.whole()  # `omnibus up` starts what hangs again
    await nodes.becomes_ready()
    async with asyncio.timeout(PATIENCE * 2):
        while await is_unreachable() is not False:
            async with nodes.http() as http:
                await http.post("/v1/chat/completions", json=chat_body(VL_QUESTIONS["image"]), headers=headers)


async def test_show_lists_what_each_edge_pulled(nodes: System):
    id = await ask_apart(nodes)

    waterfall = json.loads(await run_command(nodes, "show", id, "--json"))["waterfall"]
    text = await run_command(nodes, "show", id)

    pulls = waterfall["pulls"]
    names = {nodes.node_name(node) for node in range(NODES)}
    embedding = next(pull for pull in pulls if pull["source"] >= 0)
    assert (waterfall["nodes"][embedding["source"]]["component"], embedding["output"]) == ("vision", "embedding")
    assert waterfall["nodes"][embedding["target"]]["component"] == "thinker"
    assert embedding["nbytes"] == waterfall["nodes"][embedding["source"]]["nbytes"]
    assert embedding["seconds"] > 0
    for pull in pulls:
        assert {pull["from_node"], pull["to_node"]} <= names
        assert pull["from_node"] != pull["to_node"]
    edge = f"[{embedding['source']}].embedding → [{embedding['target']}]"
    assert any(line.startswith(f"pulled  {edge}") for line in text.splitlines())


async def test_what_ran_on_one_node_lists_no_pull(nodes: System):
    async with nodes.http() as http:
        body = {**chat_body(VL_QUESTIONS["image"]), "messages": [{"role": "user", "content": "hello"}]}
        answer = await http.post("/v1/chat/completions", json=body)

    document = json.loads(await run_command(nodes, "show", answer.headers["x-request-id"], "--json"))

    assert document["waterfall"]["pulls"] == []
