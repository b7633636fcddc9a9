"""Executors on their inputs' node are preferred, within a bound of work; drained and unreachable nodes come last."""

from typing import Any

import pytest

from omnibus.bus.messages import ExecutorStatus, NodeStatus
from omnibus.cluster.nodes import NodeDirectory
from omnibus.errors import StageUnavailable
from omnibus.graph import GraphNode
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.replicas import Nearness
from omnibus_gateway.routing.router import ExecutorRoute, Router
from tests.unit.gateway.routing.test_router import APART, TASKS, TOGETHER, add_work, make_plan

HOME, NEXT, LAST = "n1", "n2", "n3"
GRAPH = [
    GraphNode(TASKS["vision"], "vision", {}, "image"),
    GraphNode(TASKS["thinker"], "thinker", {}, "", ((0, "embedding"),)),
]
EVERYWHERE = tuple((f"{option.lower()}{node[1]}", option, node) for option in "EL" for node in (HOME, NEXT, LAST))


class Nodes:
    """A router on ``HOME`` with three nodes, and executors by id."""

    def __init__(self, *executors: tuple[str, str, str], slack: float = 0.5) -> None:
        self.directory = NodeDirectory()
        members = ExecutorTable()
        self.router = Router("g1", members, Nearness(HOME, members, self.directory, slack))
        self.router.plan = make_plan(APART, TOGETHER)
        for id, option, node in executors:
            members.handle_status(ExecutorStatus(id, "m", option, (), (), node, state="ready", credits=8))
        for node in (HOME, NEXT, LAST):
            self.publish_status(node)

    def publish_status(self, node: str, **more: Any) -> None:
        """Publish a status of the sidecar of ``node``."""
        self.directory.handle_status(NodeStatus(node, "127.0.0.1", 1, 1, **more))

    def route_image(self, exclude: frozenset[str] = frozenset()) -> ExecutorRoute:
        """Return the route of an image request on the path E>L."""
        assignment = self.router.assign(GRAPH, "m")
        ticket = self.router.issue_ticket(assignment.model, assignment.kind)
        return self.router.route(assignment, ticket, exclude, pinned="E>L")


def test_an_idle_system_keeps_a_request_on_the_gateways_node():
    nodes = Nodes(*EVERYWHERE)

    assert {nodes.route_image().executors for _ in range(20)} == {("e1", "l1")}


def test_a_stage_follows_the_one_before_it():
    nodes = Nodes(("e2", "E", NEXT), *(each for each in EVERYWHERE if each[1] == "L"))

    assert {nodes.route_image().executors for _ in range(20)} == {("e2", "l2")}


@pytest.mark.parametrize("least", [0, 20])
@pytest.mark.parametrize(("more", "executor"), [(4, "l1"), (6, "l2")])
def test_nearness_is_worth_a_part_of_a_mean_invocation(least: int, more: int, executor: str):
    nodes = Nodes(("e1", "E", HOME), ("l1", "L", HOME), ("l2", "L", NEXT))
    for _ in range(100):  # a mean invocation of 10 tokens
        add_work(nodes.router, "l1", 10)
        nodes.router.members.get("l1").discharge_work(10)  # type: ignore[union-attr]
    nodes.router.members.get("l1").outstanding = least + more  # type: ignore[union-attr]
    nodes.router.members.get("l2").outstanding = least  # type: ignore[union-attr]

    assert nodes.route_image().executors == ("e1", executor)


def test_without_slack_nearness_decides_among_equals_only():
    nodes = Nodes(("e1", "E", HOME), ("l1", "L", HOME), ("l2", "L", NEXT), slack=0)
    assert nodes.route_image().executors == ("e1", "l1")

    nodes.router.members.get("l1").outstanding = 0.1  # type: ignore[union-attr]

    assert nodes.route_image().executors == ("e1", "l2")


def test_executors_of_one_node_take_turns():
    nodes = Nodes(("e1", "E", HOME), ("l1", "L", HOME), ("l1b", "L", HOME), ("l2", "L", NEXT))

    assert {nodes.route_image().executors[1] for _ in range(20)} == {"l1", "l1b"}


def test_an_executor_without_sources_nearby_is_as_good_as_any_other():
    nodes = Nodes(("e1", "E", HOME), ("l2", "L", NEXT), ("l3", "L", LAST))

    assert {nodes.route_image().executors[1] for _ in range(20)} == {"l2", "l3"}


def test_a_draining_node_gets_work_only_where_there_is_no_other():
    nodes = Nodes(("e1", "E", HOME), ("e2", "E", NEXT), ("l1", "L", HOME))
    nodes.publish_status(HOME, state="draining")

    assert nodes.route_image().executors == ("e2", "l1")

    nodes.publish_status(HOME)
    assert nodes.route_image().executors == ("e1", "l1")


def test_nodes_that_cannot_reach_each_other_are_not_paired():
    nodes = Nodes(("e1", "E", HOME), ("e2", "E", NEXT), ("l3", "L", LAST))
    assert nodes.route_image().executors == ("e1", "l3")

    nodes.publish_status(LAST, unreachable=(HOME,))
    assert nodes.route_image().executors == ("e2", "l3")

    nodes.publish_status(LAST)
    assert nodes.route_image().executors == ("e1", "l3")


def test_the_reader_gives_way_where_the_source_cannot():
    nodes = Nodes(("e1", "E", HOME), ("l2", "L", NEXT), ("l3", "L", LAST))
    nodes.publish_status(LAST, unreachable=(HOME,))

    assert {nodes.route_image().executors for _ in range(20)} == {("e1", "l2")}


def test_the_gateway_reads_from_nodes_that_it_reaches():
    nodes = Nodes(("e2", "E", NEXT), ("e3", "E", LAST), ("l2", "L", NEXT), ("l3", "L", LAST))
    nodes.publish_status(HOME, unreachable=(NEXT,))

    assert {nodes.route_image().executors for _ in range(20)} == {("e3", "l3")}


def test_where_every_route_crosses_a_cut_one_is_taken_all_the_same():
    nodes = Nodes(("e1", "E", HOME), ("l2", "L", NEXT))
    nodes.publish_status(NEXT, unreachable=(HOME,))

    assert nodes.route_image().executors == ("e1", "l2")


def test_executors_that_are_left_out_are_not_taken_to_avoid_a_cut():
    nodes = Nodes(("e1", "E", HOME), ("e2", "E", NEXT), ("l3", "L", LAST))
    nodes.publish_status(LAST, unreachable=(HOME,))

    assert nodes.route_image(exclude=frozenset({"e2"})).executors == ("e1", "l3")
    with pytest.raises(StageUnavailable):
        nodes.route_image(exclude=frozenset({"l3"}))


def test_an_image_goes_to_an_encoder_on_the_gateways_node_unless_another_knows_it():
    nodes = Nodes(("e1", "E", HOME), ("e2", "E", NEXT), ("l1", "L", HOME))
    for id in ("e1", "e2"):
        entry = nodes.router.members.get(id)
        assert entry is not None
        nodes.router.members.handle_status(
            ExecutorStatus(id, "m", "E", (), (), entry.status.node, state="ready", credits=8, keeps=True)
        )
    only_next = nodes.route_image(exclude=frozenset({"e1"}))
    assert only_next.executors == ("e2", "l1")

    assert nodes.route_image().executors == ("e2", "l1")  # the executor with the cached image
    other = [GraphNode(GRAPH[0].task, "vision", {}, "another image"), GRAPH[1]]
    assignment = nodes.router.assign(other, "m")
    ticket = nodes.router.issue_ticket("m", assignment.kind)
    assert nodes.router.route(assignment, ticket, pinned="E>L").executors == ("e1", "l1")


def test_a_replay_prefers_near_executors_as_well():
    nodes = Nodes(*EVERYWHERE)

    assert nodes.router.route_by_options("m", GRAPH, ("E", "L")).executors == ("e1", "l1")
