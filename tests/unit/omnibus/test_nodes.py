"""Nodes and links, from the status events of sidecars."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from omnibus.bus import messages, subjects
from omnibus.bus.heartbeats import NODE_ABSENT_SECONDS, NODE_FORGOTTEN_SECONDS
from omnibus.bus.messages import NodeStatus
from omnibus.cluster.nodes import RATE_WINDOW_SECONDS, NodeDirectory
from omnibus.settings import BusSettings
from tests.memory_bus import MemoryBus

BOOT = 1_000_000_000  # microseconds


@dataclass
class NodeClock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> NodeClock:
    return NodeClock()


@pytest.fixture
def directory(clock: NodeClock) -> NodeDirectory:
    return NodeDirectory(clock)


def make_status(node: str, boot: int = BOOT, **values: Any) -> NodeStatus:
    return NodeStatus(node, f"10.0.0.{ord(node)}", 7400, boot, **{"used": 5, "size": 9, **values})


def list_states(directory: NodeDirectory) -> dict[str, str]:
    return {each.node: each.state for each in directory.nodes()}


def test_nodes_have_an_address_a_start_and_an_arena(directory: NodeDirectory):
    directory.handle_status(make_status("b", transport="tls"))
    directory.handle_status(make_status("a"))

    first, second = directory.nodes()

    assert (first.node, second.node) == ("a", "b")
    assert second == ("b", "10.0.0.98:7400", "ready", "tls", 1000.0, 5, 9)


def test_nodes_are_gone_when_they_say_so_or_fall_silent_and_are_forgotten_later(
    directory: NodeDirectory, clock: NodeClock
):
    for node in "abc":
        directory.handle_status(make_status(node))
    directory.handle_status(make_status("a", state="gone"))
    directory.handle_status(make_status("b", state="draining"))

    assert list_states(directory) == {"a": "gone", "b": "draining", "c": "ready"}
    assert directory.draining == {"b"}
    assert [directory.is_gone(node) for node in "abcx"] == [True, False, False, False]
    clock.now += NODE_ABSENT_SECONDS + 0.1
    directory.handle_status(make_status("b"))
    assert list_states(directory) == {"a": "gone", "b": "ready", "c": "gone"}
    clock.now += NODE_FORGOTTEN_SECONDS
    directory.handle_status(make_status("b"))
    assert list_states(directory) == {"b": "ready"}


def test_late_events_of_an_earlier_boot_change_nothing(directory: NodeDirectory, clock: NodeClock):
    directory.handle_status(make_status("a", boot=BOOT + 1))
    directory.handle_status(make_status("a", state="gone"))
    assert list_states(directory) == {"a": "ready"}

    # The clock of a machine may have been set back since then.
    directory.handle_status(make_status("a", boot=BOOT + 1, state="gone"))
    directory.handle_status(make_status("a"))
    assert list_states(directory) == {"a": "ready"}


def test_links_have_the_rate_of_the_last_seconds(directory: NodeDirectory, clock: NodeClock):
    directory.handle_status(make_status("a", pulled={"b": 1000}, seconds={"b": 0.5}))
    (link,) = directory.links()
    assert link == ("b", "a", 1000, 0.5, None, False, "tcp")

    clock.now += 2.0
    directory.handle_status(make_status("a", pulled={"b": 4000, "c": 600}))
    assert [(link.source, link.rate) for link in directory.links()] == [("b", 1500.0), ("c", 300.0)]
    for _ in range(int(RATE_WINDOW_SECONDS) + 2):
        clock.now += 1.0
        directory.handle_status(make_status("a", pulled={"b": 4000, "c": 600}))
    assert [(link.nbytes, link.rate) for link in directory.links()] == [(4000, 0.0), (600, 0.0)]


def test_a_restarted_sidecar_counts_from_zero(directory: NodeDirectory, clock: NodeClock):
    directory.handle_status(make_status("a", pulled={"b": 4000}))
    clock.now += 1.0
    directory.handle_status(make_status("a", boot=BOOT + 1, pulled={"b": 10}))

    assert [(link.nbytes, link.rate) for link in directory.links()] == [(10, None)]


def test_pairs_are_unreachable_in_one_direction_until_the_reader_says_otherwise(
    directory: NodeDirectory, clock: NodeClock
):
    directory.handle_status(make_status("a", unreachable=("b",)))
    directory.handle_status(make_status("b"))

    assert directory.cuts == {("a", "b")}
    assert [(link.reader, link.source, link.unreachable) for link in directory.links()] == [("a", "b", True)]
    directory.handle_status(make_status("a"))
    assert directory.cuts == set()
    assert directory.links() == []


def test_readers_that_are_gone_have_no_links(directory: NodeDirectory, clock: NodeClock):
    directory.handle_status(make_status("a", pulled={"b": 10}))
    clock.now += NODE_ABSENT_SECONDS + 0.1
    assert directory.links() == []


async def test_a_directory_hears_of_all_nodes_from_the_bus():
    bus, directory = MemoryBus(BusSettings()), NodeDirectory()
    node = subjects.event_subject(subjects.NODE)
    await bus.subscribe(
        subjects.event_subject(subjects.CENSUS), lambda _: bus.publish(node, messages.encode(make_status("a")))
    )

    ends = await directory.listen(bus)
    await asyncio.sleep(0.05)
    bus.publish(node, b"{}")  # of another build
    await asyncio.sleep(0.05)

    assert list_states(directory) == {"a": "ready"}
    for end in ends:
        await end()
    bus.publish(node, messages.encode(make_status("b")))
    await asyncio.sleep(0.05)
    assert list_states(directory) == {"a": "ready"}
    await bus.drain()
