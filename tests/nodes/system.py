"""``omnibus up`` over isolated nodes, seen from outside."""

import asyncio
import contextlib
import ctypes
import json
import os
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

from omnibus.bus import messages, subjects
from omnibus.bus.heartbeats import NODE_HEARTBEAT_SECONDS
from omnibus.bus.messages import NodeStatus
from omnibus.bus.nats import NatsBus
from omnibus.cluster.nodes import NODE_EVENTS
from tests.e2e.system import LEASES_WITHIN, System
from tests.nodes.namespaces import BUS, DATA, Node, Switch

NODES = 3
#: Every component in a separate executor, and all in one.
APART, TOGETHER = "EV>EA>Th>Ta>V", "M"
_CLONE_NEWNET = 0x40000000


def node_settings(switch: Switch, others: Sequence[Node]) -> dict[str, str]:
    """Environment of a system with the hub as first node, and ``other_nodes``."""
    places = [
        {BUS: place.address(BUS), DATA: place.address(DATA), "enter": getattr(place, "visitor_prefix", ())}
        for place in (switch, *others)
    ]
    return {"TEST_NODES": json.dumps(places), "OMNIBUS_UP_FORK_SERVER": "false"}


class NamespaceSystem(System):
    """``omnibus up`` with namespaces as all nodes except the first."""

    def program(self, *arguments: str) -> Sequence[str]:
        module = "tests.nodes.up" if arguments[:1] == ("up",) else "omnibus.cli"
        return (sys.executable, "-u", "-m", module, *arguments)

    async def ledger_is_empty(self, within: float = LEASES_WITHIN, node: int | None = 0) -> None:
        """Check that no node has leases.

        The first node's arena is checked directly. The sidecars of other nodes report on theirs, which cannot be mapped
        from here.
        """
        await super().ledger_is_empty(within, node)
        used_bytes = dict.fromkeys((self.node_name(each) for each in range(1, self._nodes)), -1)
        deadline = asyncio.timeout(within + 2 * NODE_HEARTBEAT_SECONDS)
        async with deadline, self.bus() as bus, contextlib.aclosing(self._node_statuses(bus)) as stream:
            async for status in stream:
                used_bytes[status.node] = status.used
                if not any(used_bytes[node] for node in used_bytes if node != self.node_name(0)):
                    return

    async def _node_statuses(self, bus: NatsBus) -> AsyncGenerator[NodeStatus, None]:
        """Stream the heartbeats of sidecars from now on."""
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        stops = [
            await bus.subscribe(subjects.event_subject(kind), lambda d: queue.put_nowait(d.data))
            for kind in NODE_EVENTS
        ]
        bus.publish(subjects.event_subject(subjects.CENSUS), b"{}")
        try:
            while True:
                yield messages.decode_node(await queue.get())
        finally:
            for stop in stops:
                await stop()


@contextlib.contextmanager
def network_of(pid: int) -> Iterator[None]:
    """Let this thread and its children use the network of another process."""
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


async def send_chat(system: System, body: object, route: str) -> Any:
    """Send a chat request along ``route`` and return its JSON answer."""
    async with system.http() as http:
        answer = await http.post("/v1/chat/completions", json=body, headers={"x-omnibus-path": route})
    assert answer.status_code == 200, answer.text
    return answer.json()
