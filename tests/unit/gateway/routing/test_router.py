"""Choosing paths by their planned rates and executors by least outstanding work."""

from collections import Counter
from typing import Any

import pytest

from omnibus.bus.messages import ExecutorStatus
from omnibus.errors import BadRequest, NotFound, StageUnavailable
from omnibus.graph import GraphNode
from omnibus.plan import DeploymentOption, ModelPlan, Path, Plan
from omnibus_gateway.routing.assignment import ModelPart
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.router import ExecutorRoute, InvocationTicket, Router

KIND = "vision+thinker"
APART = Path("E>L", {"vision": "E", "thinker": "L"}, 70)
TOGETHER = Path("EL", {"vision": "EL", "thinker": "EL"}, 30)
STAGES = ("vision", "thinker")
TASKS = {"vision": "encode-m-vision", "thinker": "think-m-thinker"}


def plan(*paths: Path, seed: int = 0) -> Plan:
    options = {
        "E": DeploymentOption(("vision",), "encoder"),
        "L": DeploymentOption(("thinker",), "llm"),
        "EL": DeploymentOption(("vision", "thinker"), "llm"),
    }
    model = ModelPlan("tiny", "", ("vision", "thinker"), {"image": "vision"}, options, {KIND: paths}, tasks=TASKS)
    return Plan(1, seed, 0.0, {"m": model})


def status(id: str, option: str, **more: Any) -> ExecutorStatus:
    return ExecutorStatus(id, "m", option, (), (), "n", **{"state": "ready", "credits": 8, **more})  # type: ignore[arg-type]


def router(gateway: str = "g1", *executors: tuple[str, str], seed: int = 0) -> Router:
    made = Router(gateway, ExecutorTable())
    made.plan = plan(APART, TOGETHER, seed=seed)
    for id, option in executors:
        made.members.handle_status(status(id, option))
    return made


def calls(*components: str) -> list[GraphNode]:
    return [GraphNode(TASKS[component], component, {}, "") for component in components]


def part(made: Router) -> ModelPart:
    return made.assign(calls(*STAGES), "m").parts[0]


def go(made: Router, *components: str, **more: Any) -> ExecutorRoute:
    """Return the route of the next request of these components."""
    assignment = made.assign(calls(*components or STAGES), "m")
    return made.route(assignment, made.issue_ticket(assignment.model, assignment.kind), **more)


def work(made: Router, executor: str, tokens: int) -> None:
    member = made.members.get(executor)
    assert member is not None
    member.charge_work(tokens)


def counted(made: Router, count: int) -> Counter[str]:
    return Counter(made.choose_path(part(made), made.issue_ticket("m", KIND)).name for _ in range(count))


@pytest.mark.parametrize("gateway", ["g1", "g2", "a-long-name", "7f3a"])
def test_10_000_decisions_meet_the_planned_shares_to_a_thousandth(gateway: str):
    found = counted(router(gateway), 10_000)

    assert found.total() == 10_000
    assert abs(found["E>L"] - 7000) <= 10
    assert abs(found["EL"] - 3000) <= 10


def test_the_shares_hold_for_several_gateways_together():
    found = sum((counted(router(f"gateway-{number}"), 2_500) for number in range(4)), Counter[str]())

    assert abs(found["E>L"] - 7000) <= 10


@pytest.mark.parametrize("begin", [0, 1, 17, 5_000])
def test_the_shares_hold_for_any_few_hundred_requests_in_a_row(begin: int):
    made = router()
    for _ in range(begin):
        made.issue_ticket("m", KIND)

    assert abs(counted(made, 377)["E>L"] - 0.7 * 377) < 1


def test_three_paths_are_met_as_well():
    made = router()
    made.plan = plan(Path("a", {}, 5), Path("b", {}, 3), Path("c", {}, 2))

    found = counted(made, 10_000)

    assert [abs(found[name] - share) <= 10 for name, share in (("a", 5000), ("b", 3000), ("c", 2000))] == [True] * 3


def test_a_path_without_rate_is_never_chosen():
    made = router()
    made.plan = plan(Path("off", {}, 0), Path("on", {}, 1))

    assert counted(made, 1_000) == {"on": 1_000}


def test_decisions_follow_from_id_and_seed_alone():
    first, second = router(), router()
    tickets = [first.issue_ticket("m", KIND) for _ in range(500)]

    again = [second.choose_path(part(second), ticket).name for ticket in reversed(tickets)]

    assert again[::-1] == [first.choose_path(part(first), ticket).name for ticket in tickets]


def test_another_seed_or_gateway_makes_another_sequence():
    tickets = [InvocationTicket(f"t{number}", KIND, number) for number in range(100)]

    sequences = {
        tuple(made.choose_path(part(made), ticket).name for ticket in tickets)
        for made in (router(), router(seed=1), router(seed=2), router("g2"))
    }

    assert len(sequences) == 4


def test_ids_are_unique_and_say_gateway_and_kind():
    made = router("abc")

    ids = [made.issue_ticket("m", kind).id for kind in (KIND, "thinker", KIND)]

    assert [id.rpartition("-")[0] for id in ids] == ["abc-0", "abc-1", "abc-0"]
    assert len({made.issue_ticket("m", KIND).id for _ in range(10_000)}) == 10_000


def test_ids_do_not_tell_how_many_requests_there_were():
    made, other = router("abc"), router("abc")
    for _ in range(5):
        other.issue_ticket("m", KIND)

    ids = [made.issue_ticket("m", KIND).id for _ in range(100)]

    assert len({len(id) for id in ids}) == 1
    assert ids != sorted(ids)
    assert ids != sorted(ids, reverse=True)
    assert not set(ids) & {other.issue_ticket("m", KIND).id for _ in range(100)}


def test_the_executor_with_the_least_outstanding_work_is_chosen():
    made = router("g1", ("e0", "E"), ("l0", "L"), ("l1", "L"), ("l2", "L"))
    for executor, tokens in (("l0", 500), ("l1", 20), ("l2", 300)):
        work(made, executor, tokens)

    assert go(made, pinned="E>L").executors == ("e0", "l1")


def test_work_that_is_done_counts_no_more():
    made = router("g1", ("e0", "E"), ("l0", "L"), ("l1", "L"))
    work(made, "l0", 500)
    work(made, "l1", 20)
    made.members.get("l0").discharge_work(500)  # type: ignore[union-attr]

    assert go(made, pinned="E>L").executors == ("e0", "l0")


def test_without_the_planned_path_another_one_is_taken():
    made = router("g1", ("x", "EL"))

    routes = {go(made) for _ in range(50)}

    assert {(route.path, route.executors) for route in routes} == {("EL", ("x", "x"))}


def test_excluded_and_draining_executors_get_nothing():
    made = router("g1", ("e0", "E"), ("l0", "L"), ("l1", "L"))
    made.members.handle_status(status("l2", "L", state="draining"))

    route = go(made, exclude=frozenset({"l0"}), pinned="E>L")

    assert route.executors == ("e0", "l1")


@pytest.mark.parametrize(
    ("alive", "stage"), [(("e0", "E"), "thinker"), (("l0", "L"), "vision")], ids=["no LLM", "no encoder"]
)
def test_the_stage_that_stops_every_path_is_named(alive: tuple[str, str], stage: str):
    made = router("g1", alive)

    for _ in range(10):  # whichever path was planned
        with pytest.raises(StageUnavailable) as caught:
            go(made)

        assert caught.value.stage == stage


def test_an_unknown_pin_names_what_there_is():
    made = router("g1", ("x", "EL"))

    with pytest.raises(BadRequest, match="choose one of E>L, EL"):
        go(made, pinned="LE")


def test_an_unknown_model_names_what_there_is():
    with pytest.raises(NotFound, match="known: m"):
        router().get_model("n")


def test_before_the_first_plan_there_is_nothing_to_route():
    made = Router("g1", ExecutorTable())

    with pytest.raises(StageUnavailable) as caught:
        made.get_model("m")

    assert caught.value.stage == "planner"


def test_a_pin_is_taken_even_when_another_path_was_planned():
    made = router("g1", ("e0", "E"), ("l0", "L"), ("x", "EL"))

    paths = {go(made, pinned="EL").path for _ in range(20)}

    assert paths == {"EL"}


def test_a_pin_whose_executors_are_gone_is_not_replaced():
    made = router("g1", ("x", "EL"))

    with pytest.raises(StageUnavailable):
        go(made, pinned="E>L")


def test_one_executor_runs_all_nodes_of_its_option():
    made = router("g1", ("x", "EL"), ("y", "EL"))

    route = go(made, "vision", "vision", "thinker", pinned="EL")

    assert route.options == ("EL", "EL", "EL")
    assert len(set(route.executors)) == 1


def test_a_replay_goes_along_its_recorded_options():
    made = router("g1", ("e0", "E"), ("l0", "L"), ("l1", "L"), ("x", "EL"))
    work(made, "l0", 100)

    route = made.route_by_options("m", calls("vision", "vision", "thinker"), ("E", "E", "L"))

    assert (route.path, route.options, route.executors) == ("E>L", ("E", "E", "L"), ("e0", "e0", "l1"))


def test_a_replay_without_an_executor_of_its_option_names_option_and_stage():
    made = router("g1", ("x", "EL"), ("e0", "E"))

    with pytest.raises(StageUnavailable, match="option 'L'") as caught:
        made.route_by_options("m", calls(*STAGES), ("E", "L"))

    assert caught.value.stage == "thinker"


def test_work_of_an_executor_that_is_gone_is_forgotten():
    made = router("g1", ("l0", "L"))
    gone = made.members.get("l0")
    assert gone is not None
    gone.charge_work(500)
    made.members.remove("l0")
    made.members.handle_status(status("l0", "L"))

    gone.discharge_work(500)

    assert made.members.get("l0").outstanding == 0  # type: ignore[union-attr]


def test_a_type_that_nobody_planned_takes_the_paths_of_a_wider_one():
    made = router("g1", ("e0", "E"), ("x", "EL"))

    found = Counter(go(made, "vision").path for _ in range(1000))

    assert abs(found["E"] - 700) <= 2
    assert found.total() == found["E"] + found["EL"]


def test_components_that_no_path_runs_are_named():
    made = router("g1", ("x", "EL"))
    made.plan = plan()
    made.plan.models["m"].types.clear()

    with pytest.raises(StageUnavailable, match=r"no path of m runs vision\+thinker"):
        go(made)


def test_paths_without_any_rate_are_refused():
    made = router("g1", ("x", "EL"))
    made.plan = plan(Path("EL", {"vision": "EL", "thinker": "EL"}, 0))

    with pytest.raises(BadRequest, match="no rate"):
        go(made)


def test_who_asks_for_a_path_without_rate_gets_it():
    made = router("g1", ("x", "EL"))
    made.plan = plan(APART, Path("EL", {"vision": "EL", "thinker": "EL"}, 0))

    assert go(made, pinned="EL").path == "EL"
    assert go(made, pins=["", "path:EL"]).path == "EL"


def test_an_id_may_be_older_than_the_number():
    made = router("g1")

    tickets = [made.issue_ticket("m", KIND, "run-7"), made.issue_ticket("m", KIND)]

    assert [ticket.number for ticket in tickets] == [0, 1]
    assert (tickets[0].id, tickets[1].id[:5]) == ("run-7", "g1-0-")


def turn(made: Router, conversation: str, *components: str) -> ExecutorRoute:
    assignment = made.assign(calls(*components or STAGES), "m")
    return made.route(assignment, made.issue_ticket("m", assignment.kind, cache_key=conversation))


def test_the_turns_of_a_conversation_take_one_path_to_one_executor():
    made = router("g1", ("e0", "E"), ("l0", "L"), ("l1", "L"), ("m0", "EL"), ("m1", "EL"))
    first = {f"talk{number}": turn(made, f"talk{number}") for number in range(20)}
    for conversation, route in first.items():
        for _ in range(3):
            go(made)  # other requests in between
            assert turn(made, conversation)[:3] == route[:3]

    shares = Counter(route.path for route in first.values())
    assert shares["E>L"] == pytest.approx(14, abs=1)
    assert len({route.executors for route in first.values()}) == 4


def test_a_turn_goes_elsewhere_when_its_executor_is_gone_or_busy():
    made = router("g1", ("e0", "E"), ("l0", "L"), ("l1", "L"))
    _, before = turn(made, "talk").executors
    work(made, before, 10)
    _, busy = turn(made, "talk").executors
    made.members.remove(busy)
    _, gone = turn(made, "talk").executors

    assert busy != before == gone
