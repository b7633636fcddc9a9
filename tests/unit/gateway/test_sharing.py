"""Sharing a request's items among standalone encoders; equal items return to the same encoder."""

from collections import Counter
from typing import Any

import pytest

from omnibus.bus.messages import ExecutorStatus
from omnibus.graph import GraphNode
from omnibus.plan import DeploymentOption, ModelPlan, Path, Plan
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.router import ExecutorRoute, Router

TASKS = {"vision": "encode-m-vision", "thinker": "think-m-thinker"}
KIND = "vision+thinker"


def make_router(keeps: bool = True, count: int = 2) -> Router:
    """Return a router with a thinker and encoders with 8 credits each."""
    options = {"E": DeploymentOption(("vision",), "encoder"), "L": DeploymentOption(("thinker",), "llm")}
    paths = {KIND: (Path("E>L", {"vision": "E", "thinker": "L"}, 1),)}
    model = ModelPlan("tiny", "", ("vision", "thinker"), {"image": "vision"}, options, paths, tasks=TASKS)
    new_router = Router("g1", ExecutorTable())
    new_router.plan = Plan(1, 0, 0.0, {"m": model})
    for id, option in [("l0", "L"), *((f"e{number}", "E") for number in range(count))]:
        new_router.members.handle_status(ExecutorStatus(id, "m", option, (), (), "n", "ready", 8, keeps=keeps))
    return new_router


def make_nodes(*digests: str) -> list[GraphNode]:
    """Return encoder calls with images of these digests, and their thinker."""
    return [GraphNode(TASKS["vision"], "vision", {}, digest) for digest in digests] + [
        GraphNode(TASKS["thinker"], "thinker", {}, "")
    ]


def route_images(toy_router: Router, *digests: str, **more: Any) -> ExecutorRoute:
    """Return the route of a request with these images."""
    assignment = toy_router.assign(make_nodes(*digests), "m")
    return toy_router.route(assignment, toy_router.issue_ticket(assignment.model, assignment.kind), **more)


@pytest.mark.parametrize("keeps", [True, False])
def test_encoders_share_a_requests_items(keeps: bool):
    route = route_images(make_router(keeps), "d1", "d2", "d3", "d4", work=[100, 100, 100, 100, 400])

    assert Counter(route.executors) == {"e0": 2, "e1": 2, "l0": 1}
    assert route.options == ("E", "E", "E", "E", "L")
    assert route.work == (100, 100, 100, 100, 400)


def test_large_items_count_for_more_than_small_ones():
    route = route_images(make_router(), "d1", "d2", "d3", "d4", work=[1000, 90, 80, 70, 400])

    assert len(set(route.executors[1:4])) == 1
    assert route.executors[0] != route.executors[1]


def test_an_item_goes_where_it_went_before():
    toy_router = make_router(count=4)
    once = route_images(toy_router, "d1", "d2", "d3", work=[100] * 4)

    again = [route_images(toy_router, digest, work=[100, 100]) for digest in ("d3", "d1", "d2") for _ in range(3)]

    assert [route.executors[0] for route in again[::3]] == [once.executors[number] for number in (2, 0, 1)]
    assert {route.executors[0] for route in again[3:6]} == {once.executors[0]}
    assert {route.work[0] for route in again} == {100 / 16}


def test_an_item_whose_executor_is_excluded_or_gone_goes_elsewhere():
    toy_router = make_router()
    before = route_images(toy_router, "d1").executors[0]

    without = route_images(toy_router, "d1", exclude=frozenset({before})).executors[0]
    toy_router.members.remove(without)

    assert without != before
    assert route_images(toy_router, "d1").executors[0] == before


def test_an_item_goes_elsewhere_when_who_knows_it_has_no_credit_left():
    toy_router = make_router()
    before = route_images(toy_router, "d1").executors[0]
    for _ in range(8):
        toy_router.members.get(before).charge_work(0)  # type: ignore[union-attr]

    assert route_images(toy_router, "d1").executors[0] != before


def test_replicas_that_keep_nothing_take_turns():
    toy_router = make_router(keeps=False)

    assert Counter(route_images(toy_router, "d1").executors[0] for _ in range(10)) == {"e0": 5, "e1": 5}


def test_an_item_that_is_computed_from_another_has_no_known_content():
    toy_router = make_router()
    node = GraphNode(TASKS["vision"], "vision", {}, "same", ((0, "picture"),))
    assignment = toy_router.assign([*make_nodes("")[:1], node], "m")

    executor_ids = {toy_router.route(assignment, toy_router.issue_ticket("m", "vision")).executors[1] for _ in range(8)}

    assert executor_ids == {"e0", "e1"}


def test_a_replay_shares_a_requests_items_too():
    toy_router = make_router()
    first = route_images(toy_router, "d1", "d2")

    again = toy_router.route_by_options("m", make_nodes("d1", "d2"), ("E", "E", "L"), work=[64, 64, 64])

    assert (again.path, again.executors) == ("E>L", first.executors)
    assert again.work == (4, 4, 64)
