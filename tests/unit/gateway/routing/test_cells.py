"""Requests stay within one cell, chosen by shares and work. Other cells take over from a lost one."""

from collections import Counter
from typing import Any

import pytest

from omnibus.bus.messages import ExecutorStatus
from omnibus.cells import join_cells
from omnibus.graph import GraphNode
from omnibus.plan import DeploymentOption, ModelPlan, Path, Plan
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.router import ExecutorRoute, Router

STAGES = {"vision": "encode-m-vision", "thinker": "think-m-thinker"}
IDS = ("E@c1", "L@c1", "E@c2", "L@c2")


def make_cell(rate: float) -> ModelPlan:
    options = {"E": DeploymentOption(("vision",), "encoder"), "L": DeploymentOption(("thinker",), "llm")}
    path = Path("E>L", {"vision": "E", "thinker": "L"}, rate)
    return ModelPlan("tiny", "", tuple(STAGES), {"image": "vision"}, options, {"vision+thinker": (path,)}, tasks=STAGES)


@pytest.fixture
def router() -> Router:
    """A router of two cells, the first with three times the share; an executor has its option's name."""
    cell_router = Router("g1", ExecutorTable())
    cell_router.plan = Plan(1, 0, 0.0, {"m": join_cells([make_cell(3.0), make_cell(1.0)])})
    for option in IDS:
        cell_router.members.handle_status(ExecutorStatus(option, "m", option, (), (), "n", state="ready", credits=8))
    return cell_router


def route_request(router: Router, **more: Any) -> ExecutorRoute:
    nodes = [GraphNode(task, component, {}, "") for component, task in STAGES.items()]
    assignment = router.assign(nodes, "m")
    return router.route(assignment, router.issue_ticket(assignment.model, assignment.kind), **more)


def count_cells(router: Router, count: int, **more: Any) -> Counter[tuple[str, ...]]:
    """Return the cells of the executors of ``count`` requests."""
    return Counter(tuple(id.partition("@")[2] for id in route_request(router, **more).executors) for _ in range(count))


def add_work(router: Router, executor: str, tokens: int) -> None:
    member = router.members.get(executor)
    assert member is not None
    member.charge_work(tokens)


def test_a_request_stays_in_one_cell_and_cells_get_their_shares(router: Router):
    assert count_cells(router, 400) == {("c1", "c1"): 300, ("c2", "c2"): 100}


@pytest.mark.parametrize(("busy", "idle"), [("E@c1", "c2"), ("L@c1", "c2"), ("E@c2", "c1"), ("L@c2", "c1")])
def test_the_cell_with_the_least_work_for_its_share_is_taken(router: Router, busy: str, idle: str):
    add_work(router, busy, 100)

    assert count_cells(router, 20) == {(idle, idle): 20}


def test_work_counts_against_the_share(router: Router):
    add_work(router, "L@c1", 100)
    add_work(router, "L@c2", 50)  # a third of the share, and half of the work

    assert count_cells(router, 20) == {("c1", "c1"): 20}


def test_other_cells_take_over_from_one_that_has_lost_an_executor_and_it_is_said_once(
    router: Router, caplog: pytest.LogCaptureFixture
):
    router.members.remove("E@c1")

    assert count_cells(router, 20) == {("c2", "c2"): 20}
    assert caplog.messages == ["cell c1 of m has lost a stage: its requests go to c2 and others"]


def test_a_request_that_moves_away_from_an_executor_leaves_its_cell(router: Router):
    assert count_cells(router, 20, exclude=frozenset({"L@c1"})) == {("c2", "c2"): 20}


def test_a_drained_cell_gets_nothing_until_it_is_given_its_share_again(router: Router):
    router.use_cell_shares({"m/c1": 0.0})
    counts = count_cells(router, 20)
    router.use_cell_shares({})

    assert counts == {("c2", "c2"): 20}
    assert count_cells(router, 400)["c1", "c1"] == pytest.approx(300, abs=2)


def test_a_drained_cell_takes_over_when_no_other_one_can(router: Router):
    router.use_cell_shares({"m/c1": 0.0})
    router.members.remove("L@c2")

    assert count_cells(router, 5) == {("c1", "c1"): 5}


def test_who_names_a_path_gets_its_cell(router: Router):
    add_work(router, "E@c2", 100)

    assert count_cells(router, 5, pinned="E@c2>L@c2") == {("c2", "c2"): 5}


def test_a_plan_without_cells_is_routed_as_before(router: Router):
    router.plan = Plan(2, 0, 0.0, {"m": make_cell(1.0)})
    for option in ("E", "L"):
        router.members.handle_status(ExecutorStatus(option, "m", option, (), (), "n", state="ready", credits=8))

    assert route_request(router).executors == ("E", "L")
