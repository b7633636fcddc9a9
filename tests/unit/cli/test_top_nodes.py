"""Nodes and links in ``omnibus top``, shown only if there are several nodes."""

import json
import time
from typing import Any

import msgspec
import pytest

from omnibus.bus.heartbeats import EXECUTOR_ABSENT_SECONDS, GATEWAY_FORGOTTEN_SECONDS
from omnibus.bus.messages import GatewayStatus, NodeStatus
from omnibus.cluster.monitor import state_values
from omnibus.cluster.monitor.snapshot import SystemState
from tests.unit.cli.watched import MonitorClock, make_event, make_status, show_rows

MIB = 1 << 20
BOOT = round((time.time() - 3 * 86_400) * 1e6)


@pytest.fixture
def clock() -> MonitorClock:
    return MonitorClock()


@pytest.fixture
def system_state(clock: MonitorClock) -> SystemState:
    """Two nodes, of which the second pulls from the first."""
    state = SystemState(clock)
    state.nodes.handle_status(make_node("n"))
    state.nodes.handle_status(make_node("p", pulled={"n": 0}))
    clock.now += 2.0
    state.nodes.handle_status(make_node("p", pulled={"n": 8 * MIB}, seconds={"n": 0.25}, used=MIB, transport="tls"))
    state.handle_executor(make_status("e-0", inflight=2))
    state.handle_executor(msgspec.structs.replace(make_status("l-0"), node="p"))
    state.handle_gateway(GatewayStatus("g", 3, 1.0, node="n"))
    return state


def make_node(name: str, **values: Any) -> NodeStatus:
    return NodeStatus(name, "10.0.0.1", 7400, BOOT, **{"size": 4 * MIB, **values})


def test_nodes_are_shown_with_who_is_on_them(system_state: SystemState):
    table = show_rows(system_state)

    assert table["NODES"] == ["state", "started", "arena used", "executors", "gateways", "address"]
    assert table["n"] == ["ready", "3 d ago", "0% of 4 MiB", "1", "1", "10.0.0.1:7400"]
    assert table["p"] == ["ready", "3 d ago", "25% of 4 MiB", "1", "0", "10.0.0.1:7400 (TLS)"]


def test_links_have_the_rate_now_the_bytes_in_all_and_the_speed_of_a_pull(system_state: SystemState):
    table = show_rows(system_state)

    assert table["LINKS"] == ["now", "in all", "at", "state"]
    assert table["n → p"] == ["4 MiB/s", "8 MiB", "32 MiB/s", "ok"]
    assert "p → n" not in table


def test_pairs_that_cannot_be_reached_are_said(system_state: SystemState):
    system_state.nodes.handle_status(make_node("n", unreachable=("p",)))

    assert show_rows(system_state)["p → n"] == ["0 B/s", "0 B", "-", "unreachable"]


def test_one_node_is_not_worth_a_table(clock: MonitorClock):
    alone = SystemState(clock)
    alone.handle_executor(make_status("e-0"))
    assert state_values(alone, ())["nodes"] == []

    alone.nodes.handle_status(make_node("n"))

    assert "NODES" not in show_rows(alone)
    assert [each["node"] for each in state_values(alone, ())["nodes"]] == ["n"]


def test_a_node_is_shown_while_anything_on_it_reports(system_state: SystemState, clock: MonitorClock):
    clock.now += EXECUTOR_ABSENT_SECONDS + GATEWAY_FORGOTTEN_SECONDS + 60.0
    system_state.nodes.handle_status(make_node("n"))
    assert "NODES" not in show_rows(system_state)

    system_state.handle_executor(msgspec.structs.replace(make_status("l-0"), node="p"))

    assert show_rows(system_state)["p"] == ["gone", "-", "-", "1", "0"]


def test_gateways_are_on_a_node_until_they_leave(system_state: SystemState):
    system_state.handle_load(make_event("of another build"))
    assert system_state.node_gateways() == {"n": ["g"]}

    system_state.handle_gateway(GatewayStatus("g", 3, 1.0, "gone", node="n"))

    assert system_state.node_gateways() == {}


def test_programs_get_nodes_and_links(system_state: SystemState):
    values = json.loads(json.dumps(state_values(system_state, ())))

    first, second = values["nodes"]
    assert (first["node"], first["state"], first["gateways"]) == ("n", "ready", ["g"])
    assert first["executors"] == [
        {"id": "e-0", "model": "m", "option": "L", "state": "ready", "busy": None, "inflight": 2}
    ]
    assert (second["transport"], second["used"], second["size"]) == ("tls", MIB, 4 * MIB)
    assert values["links"] == [
        {
            "source": "n", "reader": "p", "nbytes": 8 * MIB, "seconds": 0.25, "rate": 4.0 * MIB, "unreachable": False,
            "transport": "tls",
        }
    ]  # fmt: skip
