"""Detecting a reconnect for as long as it matters."""

import time

import pytest

from omnibus.bus.heartbeats import ReconnectMonitor, RefusalMonitor
from tests.memory_bus import MemoryBus


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The current time, which a test sets."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_connection_that_never_left_has_not_come_back(clock: list[float]):
    assert not ReconnectMonitor(MemoryBus()).reconnected_within(1e9)


def test_a_reconnect_counts_from_when_it_is_noticed(clock: list[float]):
    bus = MemoryBus()
    comeback = ReconnectMonitor(bus)
    bus.reconnects += 1

    results = []
    for clock[0] in (200.0, 201.0, 201.6, 300.0):
        results.append(comeback.reconnected_within(1.5))

    assert results == [True, True, False, False]


def test_a_second_reconnect_begins_anew(clock: list[float]):
    bus = MemoryBus()
    comeback = ReconnectMonitor(bus)
    bus.reconnects += 1
    comeback.reconnected_within(1.5)
    clock[0] += 1.4
    bus.reconnects += 1
    comeback.reconnected_within(1.5)
    clock[0] += 1.4

    assert comeback.reconnected_within(1.5)
    assert not comeback.reconnected_within(1.0)


# Refusals


def make_monitor(clustered: bool = True) -> RefusalMonitor:
    bus = MemoryBus()
    bus.clustered = clustered
    return RefusalMonitor(bus, 1.5)


def test_one_server_is_believed(clock: list[float]):
    assert make_monitor(clustered=False).confirms_loss("e")


def test_servers_of_a_cluster_are_believed_after_a_while(clock: list[float]):
    monitor = make_monitor()

    results = []
    for clock[0] in (100.0, 101.4, 101.6, 101.7):
        results.append(monitor.confirms_loss("e"))

    assert results == [False, False, True, False]


def test_a_peer_that_was_refused_is_looked_for_once_it_has_had_its_time(clock: list[float]):
    monitor = make_monitor()
    monitor.confirms_loss("e")

    results = []
    for clock[0] in (101.4, 101.5, 102.9, 103.0):
        results.append(monitor.overdue_peers())

    assert results == [[], ["e"], ["e"], []]


def test_a_peer_that_is_heard_of_is_there(clock: list[float]):
    monitor = make_monitor()
    monitor.confirms_loss("e")
    monitor.note_sign_of_life("e")
    clock[0] = 102.0

    assert monitor.overdue_peers() == []
    assert not monitor.confirms_loss("e")


def test_refusals_far_apart_are_not_of_one_loss(clock: list[float]):
    monitor = make_monitor()
    monitor.confirms_loss("e")
    clock[0] = 200.0

    assert not monitor.confirms_loss("e")
