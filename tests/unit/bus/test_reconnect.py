"""A connection that came back is noticed for as long as it matters."""

import time

import pytest

from omnibus.bus.memory import MemoryBus
from omnibus.bus.reconnect import ReconnectMonitor


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set by a test."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_connection_that_never_left_has_not_come_back(clock: list[float]):
    assert not ReconnectMonitor(MemoryBus()).reconnected_within(1e9)


def test_a_reconnect_counts_from_when_it_is_noticed(clock: list[float]):
    bus = MemoryBus()
    comeback = ReconnectMonitor(bus)
    bus.reconnects += 1

    found = []
    for clock[0] in (200.0, 201.0, 201.6, 300.0):
        found.append(comeback.reconnected_within(1.5))

    assert found == [True, True, False, False]


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
