"""The whole system over nodes that share nothing: the same answers, and failures that clients see by name."""

import asyncio
import contextlib
import ctypes
import json
import os
import subprocess
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest

from omnibus.bus import messages, subjects
from omnibus.bus.heartbeats import NODE_HEARTBEAT_SECONDS
from omnibus.bus.messages import NodeStatus
from omnibus.bus.nats import NatsBus
from tests.e2e.conftest import omni_checkpoint  # noqa: F401
from tests.e2e.omni.speech import same, spoken, taken, wanted
from tests.e2e.questions import OMNI_QUESTIONS
from tests.e2e.system import OMNI, System, declaration
from tests.nodes.namespaces import BUS, DATA, Node, Switch

pytestmark = [pytest.mark.netns, pytest.mark.slow]

NODES = 3
APART, TOGETHER = "EV>EA>Th>Ta>V", "M"
_CLONE_NEWNET = 0x40000000


class NamespaceSystem(System):
    """``omnibus up`` of which all nodes but the first are namespaces."""

    def _popen(self, module: str, *arguments: str) -> "subprocess.Popen[str]":
        return super()._popen("tests.nodes.up" if arguments[:1] == ("up",) else module, *arguments)

    async def ledger_is_empty(self, within: float = 1.0, node: int | None = 0) -> None:
        """Fails unless the first node's leases are given back, and other nodes say that nothing of theirs is in use.

        Arenas of nodes that share no memory cannot be mapped from here.
        """
        await super().ledger_is_empty(within, node)
        used = dict.fromkeys((self.node_name(each) for each in range(1, NODES)), -1)
        deadline = asyncio.timeout(within + 2 * NODE_HEARTBEAT_SECONDS)
        async with deadline, self.bus() as bus, contextlib.aclosing(self._node_statuses(bus)) as heard:
            async for status in heard:
                used[status.node] = status.used
                if not any(used[node] for node in used if node != self.node_name(0)):
                    return

    async def _node_statuses(self, bus: NatsBus) -> AsyncGenerator[NodeStatus, None]:
        """What sidecars say of themselves from now on."""
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        stop = await bus.subscribe(subjects.event_subject(subjects.NODE), lambda d: heard.put_nowait(d.data))
        bus.publish(subjects.event_subject(subjects.CENSUS), b"{}")
        try:
            while True:
                yield messages.decode_node(await heard.get())
        finally:
            await stop()


@contextlib.contextmanager
def network_of(pid: int) -> Iterator[None]:
    """Let this thread, and what it starts, have the network of another process."""
    libc = ctypes.CDLL(None, use_errno=True)
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    other = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if libc.setns(other, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        yield
    finally:
        libc.setns(own, _CLONE_NEWNET)
        os.close(own)
        os.close(other)


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    if os.geteuid():
        pytest.skip("the whole system in namespaces needs root")
    with Switch() as switch:
        yield switch


@pytest.fixture(scope="module")
def others(switch: Switch) -> Iterator[list[Node]]:
    """All nodes but the hub."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(switch.add_node(f"n{index}")) for index in range(1, NODES)]


@pytest.fixture(scope="module")
def system(
    tmp_path_factory: pytest.TempPathFactory,
    omni_checkpoint: Path,  # noqa: F811
    switch: Switch,
    others: list[Node],
) -> Iterator[System]:
    places = [
        {BUS: place.address(BUS), DATA: place.address(DATA), "enter": getattr(place, "visitor_prefix", ())}
        for place in (switch, *others)
    ]
    settings = {
        "TEST_NODES": json.dumps(places),
        "OMNIBUS_UP_FORK_SERVER": "false",
        "OMNIBUS_GATEWAY_QUARANTINE": "0",
    }
    models = {OMNI: declaration("qwen2_5_omni", omni_checkpoint)}
    made = NamespaceSystem(tmp_path_factory.mktemp("nodes"), models, settings, ("--nodes", str(NODES)))
    with network_of(switch.first_process):
        try:
            made.start()
            yield made
        except BaseException:
            print(made.log[-8000:])
            raise
        finally:
            leftovers = made.stop()
    assert leftovers == []


@pytest.mark.parametrize("name", ["text", "audio", "image"])
async def test_speech_over_three_nodes_sounds_as_from_one_executor(system: System, others: list[Node], name: str):
    question = OMNI_QUESTIONS[name]
    before = sum(node.received_bytes() for node in others)

    apart, together = [
        await ask(system, wanted(question), taken(route, question, speech=True)) for route in (APART, TOGETHER)
    ]

    same(spoken(apart), spoken(together))
    assert sum(node.received_bytes() for node in others) > before
    await system.ledger_is_empty(5.0)


async def test_a_node_that_is_cut_off_costs_typed_errors_and_serves_again(system: System, others: list[Node]):
    question = OMNI_QUESTIONS["text"]
    body, route = wanted(question), taken(APART, question, speech=True)
    good = spoken(await ask(system, body, route))
    for node in others:
        node.cut_cable(DATA)

    async with system.http() as http:
        answer = await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": route})

    assert answer.status_code in (502, 503), answer.text
    assert answer.json()["error"]["code"] in {"node_unreachable", "unavailable", "stage_unavailable"}
    await system.ledger_is_empty(10.0)
    for node in others:
        node.heal_cable(DATA)
    async with asyncio.timeout(90), system.http() as http:
        while (again := await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": route})).is_error:
            await asyncio.sleep(0.2)
    same(good, spoken(again.json()))


async def ask(system: System, body: object, route: str) -> Any:
    async with system.http() as http:
        answer = await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": route})
    assert answer.status_code == 200, answer.text
    return answer.json()
