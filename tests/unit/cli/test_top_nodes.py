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
from tests.unit.cli.watched import Clock, event, shown, status

MIB = 1 << 20
BOOT = round((time.time() - 3 * 86_400) * 1e6)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def seen(clock: Clock) -> SystemState:
    """Two nodes, of which the second pulls from the first."""
    made = SystemState(clock)
    made.nodes.handle_status(node("n"))
    made.nodes.handle_status(node("p", pulled={"n": 0}))
    clock.now += 2.0
    made.nodes.handle_status(node("p", pulled={"n": 8 * MIB}, seconds={"n": 0.25}, used=MIB, transport="tls"))
    made.handle_executor(status("e-0", inflight=2))
    made.handle_executor(msgspec.structs.replace(status("l-0"), node="p"))
    made.handle_gateway(GatewayStatus("g", 3, 1.0, node="n"))
    return made


def node(name: str, **values: Any) -> NodeStatus:
    return NodeStatus(name, "10.0.0.1", 7400, BOOT, **{"size": 4 * MIB, **values})


def test_nodes_are_shown_with_who_is_on_them(seen: SystemState):
    table = shown(seen)

    assert table["NODES"] == ["state", "started", "arena used", "executors", "gateways", "address"]
    assert table["n"] == ["ready", "3 d ago", "0% of 4 MiB", "1", "1", "10.0.0.1:7400"]
    assert table["p"] == ["ready", "3 d ago", "25% of 4 MiB", "1", "0", "10.0.0.1:7400 (TLS)"]


def test_links_have_the_rate_now_the_bytes_in_all_and_the_speed_of_a_pull(seen: SystemState):
    table = shown(seen)

    assert table["LINKS"] == ["now", "in all", "at", "state"]
    assert table["n → p"] == ["4 MiB/s", "8 MiB", "32 MiB/s", "ok"]
    assert "p → n" not in table


def test_pairs_that_cannot_be_reached_are_said(seen: SystemState):
    seen.nodes.handle_status(node("n", unreachable=("p",)))

    assert shown(seen)["p → n"] == ["0 B/s", "0 B", "-", "unreachable"]


def test_one_node_is_not_worth_a_table(clock: Clock):
    alone = SystemState(clock)
    alone.handle_executor(status("e-0"))
    assert state_values(alone, ())["nodes"] == []

    alone.nodes.handle_status(node("n"))

    assert "NODES" not in shown(alone)
    assert [each["node"] for each in state_values(alone, ())["nodes"]] == ["n"]


def test_a_node_is_shown_while_anything_on_it_reports(seen: SystemState, clock: Clock):
    clock.now += EXECUTOR_ABSENT_SECONDS + GATEWAY_FORGOTTEN_SECONDS + 60.0
    seen.nodes.handle_status(node("n"))
    assert "NODES" not in shown(seen)

    seen.handle_executor(msgspec.structs.replace(status("l-0"), node="p"))

    assert shown(seen)["p"] == ["gone", "-", "-", "1", "0"]


def test_gateways_are_on_a_node_until_they_leave(seen: SystemState):
    seen.handle_load(event("of another build"))
    assert seen.node_gateways() == {"n": ["g"]}

    seen.handle_gateway(GatewayStatus("g", 3, 1.0, "gone", node="n"))

    assert seen.node_gateways() == {}


def test_programs_get_nodes_and_links(seen: SystemState):
    known = json.loads(json.dumps(state_values(seen, ())))

    first, second = known["nodes"]
    assert (first["node"], first["state"], first["gateways"]) == ("n", "ready", ["g"])
    assert first["executors"] == [
        {"id": "e-0", "model": "m", "option": "L", "state": "ready", "busy": None, "inflight": 2}
    ]
    assert (second["transport"], second["used"], second["size"]) == ("tls", MIB, 4 * MIB)
    assert known["links"] == [
        {
            "source": "n", "reader": "p", "nbytes": 8 * MIB, "seconds": 0.25, "rate": 4.0 * MIB, "unreachable": False,
            "transport": "tls",
        }
    ]  # fmt: skip
