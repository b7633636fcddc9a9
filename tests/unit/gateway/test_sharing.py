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


def encoders(keeps: bool = True, count: int = 2) -> Router:
    """Return a router with a thinker and encoders with 8 credits each."""
    options = {"E": DeploymentOption(("vision",), "encoder"), "L": DeploymentOption(("thinker",), "llm")}
    paths = {KIND: (Path("E>L", {"vision": "E", "thinker": "L"}, 1),)}
    model = ModelPlan("tiny", "", ("vision", "thinker"), {"image": "vision"}, options, paths, tasks=TASKS)
    made = Router("g1", ExecutorTable())
    made.plan = Plan(1, 0, 0.0, {"m": model})
    for id, option in [("l0", "L"), *((f"e{number}", "E") for number in range(count))]:
        made.members.handle_status(ExecutorStatus(id, "m", option, (), (), "n", "ready", 8, keeps=keeps))
    return made


def pictures(*digests: str) -> list[GraphNode]:
    """Return encoder calls with images of these digests, and their thinker."""
    return [GraphNode(TASKS["vision"], "vision", {}, digest) for digest in digests] + [
        GraphNode(TASKS["thinker"], "thinker", {}, "")
    ]


def shared(made: Router, *digests: str, **more: Any) -> ExecutorRoute:
    """Return the route of a request with these images."""
    assignment = made.assign(pictures(*digests), "m")
    return made.route(assignment, made.issue_ticket(assignment.model, assignment.kind), **more)


@pytest.mark.parametrize("keeps", [True, False])
def test_encoders_share_a_requests_items(keeps: bool):
    route = shared(encoders(keeps), "d1", "d2", "d3", "d4", work=[100, 100, 100, 100, 400])

    assert Counter(route.executors) == {"e0": 2, "e1": 2, "l0": 1}
    assert route.options == ("E", "E", "E", "E", "L")
    assert route.work == (100, 100, 100, 100, 400)


def test_large_items_count_for_more_than_small_ones():
    route = shared(encoders(), "d1", "d2", "d3", "d4", work=[1000, 90, 80, 70, 400])

    assert len(set(route.executors[1:4])) == 1
    assert route.executors[0] != route.executors[1]


def test_an_item_goes_where_it_went_before():
    made = encoders(count=4)
    once = shared(made, "d1", "d2", "d3", work=[100] * 4)

    again = [shared(made, digest, work=[100, 100]) for digest in ("d3", "d1", "d2") for _ in range(3)]

    assert [route.executors[0] for route in again[::3]] == [once.executors[number] for number in (2, 0, 1)]
    assert {route.executors[0] for route in again[3:6]} == {once.executors[0]}
    assert {route.work[0] for route in again} == {100 / 16}


def test_an_item_whose_executor_is_excluded_or_gone_goes_elsewhere():
    made = encoders()
    before = shared(made, "d1").executors[0]

    without = shared(made, "d1", exclude=frozenset({before})).executors[0]
    made.members.remove(without)

    assert without != before
    assert shared(made, "d1").executors[0] == before


def test_an_item_goes_elsewhere_when_who_knows_it_has_no_credit_left():
    made = encoders()
    before = shared(made, "d1").executors[0]
    for _ in range(8):
        made.members.get(before).charge_work(0)  # type: ignore[union-attr]

    assert shared(made, "d1").executors[0] != before


def test_replicas_that_keep_nothing_take_turns():
    made = encoders(keeps=False)

    assert Counter(shared(made, "d1").executors[0] for _ in range(10)) == {"e0": 5, "e1": 5}


def test_an_item_that_is_computed_from_another_has_no_known_content():
    made = encoders()
    node = GraphNode(TASKS["vision"], "vision", {}, "same", ((0, "picture"),))
    assignment = made.assign([*pictures("")[:1], node], "m")

    taken = {made.route(assignment, made.issue_ticket("m", "vision")).executors[1] for _ in range(8)}

    assert taken == {"e0", "e1"}


def test_a_replay_shares_a_requests_items_too():
    made = encoders()
    first = shared(made, "d1", "d2")

    again = made.route_by_options("m", pictures("d1", "d2"), ("E", "E", "L"), work=[64, 64, 64])

    assert (again.path, again.executors) == ("E>L", first.executors)
    assert again.work == (4, 4, 64)
