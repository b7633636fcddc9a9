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


def make_plan(*paths: Path, seed: int = 0) -> Plan:
    options = {
        "E": DeploymentOption(("vision",), "encoder"),
        "L": DeploymentOption(("thinker",), "llm"),
        "EL": DeploymentOption(("vision", "thinker"), "llm"),
    }
    model = ModelPlan("tiny", "", ("vision", "thinker"), {"image": "vision"}, options, {KIND: paths}, tasks=TASKS)
    return Plan(1, seed, 0.0, {"m": model})


def make_status(id: str, option: str, **more: Any) -> ExecutorStatus:
    return ExecutorStatus(id, "m", option, (), (), "n", **{"state": "ready", "credits": 8, **more})  # type: ignore[arg-type]


def make_router(gateway: str = "g1", *executors: tuple[str, str], seed: int = 0) -> Router:
    new_router = Router(gateway, ExecutorTable())
    new_router.plan = make_plan(APART, TOGETHER, seed=seed)
    for id, option in executors:
        new_router.members.handle_status(make_status(id, option))
    return new_router


def make_calls(*components: str) -> list[GraphNode]:
    return [GraphNode(TASKS[component], component, {}, "") for component in components]


def get_part(router: Router) -> ModelPart:
    return router.assign(make_calls(*STAGES), "m").parts[0]


def route_request(router: Router, *components: str, **more: Any) -> ExecutorRoute:
    """Return the route of the next request of these components."""
    assignment = router.assign(make_calls(*components or STAGES), "m")
    return router.route(assignment, router.issue_ticket(assignment.model, assignment.kind), **more)


def add_work(router: Router, executor: str, tokens: int) -> None:
    member = router.members.get(executor)
    assert member is not None
    member.charge_work(tokens)


def count_paths(router: Router, count: int) -> Counter[str]:
    return Counter(router.choose_path(get_part(router), router.issue_ticket("m", KIND)).name for _ in range(count))


@pytest.mark.parametrize("gateway", ["g1", "g2", "a-long-name", "7f3a"])
def test_10_000_decisions_meet_the_planned_shares_to_a_thousandth(gateway: str):
    path_counts = count_paths(make_router(gateway), 10_000)

    assert path_counts.total() == 10_000
    assert abs(path_counts["E>L"] - 7000) <= 10
    assert abs(path_counts["EL"] - 3000) <= 10


def test_the_shares_hold_for_several_gateways_together():
    path_counts = sum((count_paths(make_router(f"gateway-{number}"), 2_500) for number in range(4)), Counter[str]())

    assert abs(path_counts["E>L"] - 7000) <= 10


@pytest.mark.parametrize("begin", [0, 1, 17, 5_000])
def test_the_shares_hold_for_any_few_hundred_requests_in_a_row(begin: int):
    gateway_router = make_router()
    for _ in range(begin):
        gateway_router.issue_ticket("m", KIND)

    assert abs(count_paths(gateway_router, 377)["E>L"] - 0.7 * 377) < 1


def test_three_paths_are_met_as_well():
    gateway_router = make_router()
    gateway_router.plan = make_plan(Path("a", {}, 5), Path("b", {}, 3), Path("c", {}, 2))

    path_counts = count_paths(gateway_router, 10_000)

    assert [abs(path_counts[name] - share) <= 10 for name, share in (("a", 5000), ("b", 3000), ("c", 2000))] == [
        True
    ] * 3


def test_a_path_without_rate_is_never_chosen():
    gateway_router = make_router()
    gateway_router.plan = make_plan(Path("off", {}, 0), Path("on", {}, 1))

    assert count_paths(gateway_router, 1_000) == {"on": 1_000}


def test_decisions_follow_from_id_and_seed_alone():
    first, second = make_router(), make_router()
    tickets = [first.issue_ticket("m", KIND) for _ in range(500)]

    again = [second.choose_path(get_part(second), ticket).name for ticket in reversed(tickets)]

    assert again[::-1] == [first.choose_path(get_part(first), ticket).name for ticket in tickets]


def test_another_seed_or_gateway_makes_another_sequence():
    tickets = [InvocationTicket(f"t{number}", KIND, number) for number in range(100)]

    sequences = {
        tuple(gateway_router.choose_path(get_part(gateway_router), ticket).name for ticket in tickets)
        for gateway_router in (make_router(), make_router(seed=1), make_router(seed=2), make_router("g2"))
    }

    assert len(sequences) == 4


def test_ids_are_unique_and_say_gateway_and_kind():
    gateway_router = make_router("abc")

    ids = [gateway_router.issue_ticket("m", kind).id for kind in (KIND, "thinker", KIND)]

    assert [id.rpartition("-")[0] for id in ids] == ["abc-0", "abc-1", "abc-0"]
    assert len({gateway_router.issue_ticket("m", KIND).id for _ in range(10_000)}) == 10_000


def test_ids_do_not_tell_how_many_requests_there_were():
    gateway_router, other = make_router("abc"), make_router("abc")
    for _ in range(5):
        other.issue_ticket("m", KIND)

    ids = [gateway_router.issue_ticket("m", KIND).id for _ in range(100)]

    assert len({len(id) for id in ids}) == 1
    assert ids != sorted(ids)
    assert ids != sorted(ids, reverse=True)
    assert not set(ids) & {other.issue_ticket("m", KIND).id for _ in range(100)}


def test_the_executor_with_the_least_outstanding_work_is_chosen():
    gateway_router = make_router("g1", ("e0", "E"), ("l0", "L"), ("l1", "L"), ("l2", "L"))
    for executor, tokens in (("l0", 500), ("l1", 20), ("l2", 300)):
        add_work(gateway_router, executor, tokens)

    assert route_request(gateway_router, pinned="E>L").executors == ("e0", "l1")


def test_work_that_is_done_counts_no_more():
    gateway_router = make_router("g1", ("e0", "E"), ("l0", "L"), ("l1", "L"))
    add_work(gateway_router, "l0", 500)
    add_work(gateway_router, "l1", 20)
    gateway_router.members.get("l0").discharge_work(500)  # type: ignore[union-attr]

    assert route_request(gateway_router, pinned="E>L").executors == ("e0", "l0")


def test_without_the_planned_path_another_one_is_taken():
    gateway_router = make_router("g1", ("x", "EL"))

    routes = {route_request(gateway_router) for _ in range(50)}

    assert {(route.path, route.executors) for route in routes} == {("EL", ("x", "x"))}


def test_excluded_and_draining_executors_get_nothing():
    gateway_router = make_router("g1", ("e0", "E"), ("l0", "L"), ("l1", "L"))
    gateway_router.members.handle_status(make_status("l2", "L", state="draining"))

    route = route_request(gateway_router, exclude=frozenset({"l0"}), pinned="E>L")

    assert route.executors == ("e0", "l1")


@pytest.mark.parametrize(
    ("alive", "stage"), [(("e0", "E"), "thinker"), (("l0", "L"), "vision")], ids=["no LLM", "no encoder"]
)
def test_the_stage_that_stops_every_path_is_named(alive: tuple[str, str], stage: str):
    gateway_router = make_router("g1", alive)

    for _ in range(10):  # whichever path was planned
        with pytest.raises(StageUnavailable) as caught:
            route_request(gateway_router)

        assert caught.value.stage == stage


def test_an_unknown_pin_names_what_there_is():
    gateway_router = make_router("g1", ("x", "EL"))

    with pytest.raises(BadRequest, match="choose one of E>L, EL"):
        route_request(gateway_router, pinned="LE")


def test_an_unknown_model_names_what_there_is():
    with pytest.raises(NotFound, match="known: m"):
        make_router().get_model("n")


def test_before_the_first_plan_there_is_nothing_to_route():
    gateway_router = Router("g1", ExecutorTable())

    with pytest.raises(StageUnavailable) as caught:
        gateway_router.get_model("m")

    assert caught.value.stage == "planner"


def test_a_pin_is_taken_even_when_another_path_was_planned():
    gateway_router = make_router("g1", ("e0", "E"), ("l0", "L"), ("x", "EL"))

    paths = {route_request(gateway_router, pinned="EL").path for _ in range(20)}

    assert paths == {"EL"}


def test_a_pin_whose_executors_are_gone_is_not_replaced():
    gateway_router = make_router("g1", ("x", "EL"))

    with pytest.raises(StageUnavailable):
        route_request(gateway_router, pinned="E>L")


def test_one_executor_runs_all_nodes_of_its_option():
    gateway_router = make_router("g1", ("x", "EL"), ("y", "EL"))

    route = route_request(gateway_router, "vision", "vision", "thinker", pinned="EL")

    assert route.options == ("EL", "EL", "EL")
    assert len(set(route.executors)) == 1


def test_a_replay_goes_along_its_recorded_options():
    gateway_router = make_router("g1", ("e0", "E"), ("l0", "L"), ("l1", "L"), ("x", "EL"))
    add_work(gateway_router, "l0", 100)

    route = gateway_router.route_by_options("m", make_calls("vision", "vision", "thinker"), ("E", "E", "L"))

    assert (route.path, route.options, route.executors) == ("E>L", ("E", "E", "L"), ("e0", "e0", "l1"))


def test_a_replay_without_an_executor_of_its_option_names_option_and_stage():
    gateway_router = make_router("g1", ("x", "EL"), ("e0", "E"))

    with pytest.raises(StageUnavailable, match="option 'L'") as caught:
        gateway_router.route_by_options("m", make_calls(*STAGES), ("E", "L"))

    assert caught.value.stage == "thinker"


def test_work_of_an_executor_that_is_gone_is_forgotten():
    gateway_router = make_router("g1", ("l0", "L"))
    member = gateway_router.members.get("l0")
    assert member is not None
    member.charge_work(500)
    gateway_router.members.remove("l0")
    gateway_router.members.handle_status(make_status("l0", "L"))

    member.discharge_work(500)

    assert gateway_router.members.get("l0").outstanding == 0  # type: ignore[union-attr]


def test_a_type_that_nobody_planned_takes_the_paths_of_a_wider_one():
    gateway_router = make_router("g1", ("e0", "E"), ("x", "EL"))

    path_counts = Counter(route_request(gateway_router, "vision").path for _ in range(1000))

    assert abs(path_counts["E"] - 700) <= 2
    assert path_counts.total() == path_counts["E"] + path_counts["EL"]


def test_components_that_no_path_runs_are_named():
    gateway_router = make_router("g1", ("x", "EL"))
    gateway_router.plan = make_plan()
    gateway_router.plan.models["m"].types.clear()

    with pytest.raises(StageUnavailable, match=r"no path of m runs vision\+thinker"):
        route_request(gateway_router)


def test_paths_without_any_rate_are_refused():
    gateway_router = make_router("g1", ("x", "EL"))
    gateway_router.plan = make_plan(Path("EL", {"vision": "EL", "thinker": "EL"}, 0))

    with pytest.raises(BadRequest, match="no rate"):
        route_request(gateway_router)


def test_who_asks_for_a_path_without_rate_gets_it():
    gateway_router = make_router("g1", ("x", "EL"))
    gateway_router.plan = make_plan(APART, Path("EL", {"vision": "EL", "thinker": "EL"}, 0))

    assert route_request(gateway_router, pinned="EL").path == "EL"
    assert route_request(gateway_router, pins=["", "path:EL"]).path == "EL"


def test_an_id_may_be_older_than_the_number():
    gateway_router = make_router("g1")

    tickets = [gateway_router.issue_ticket("m", KIND, "run-7"), gateway_router.issue_ticket("m", KIND)]

    assert [ticket.number for ticket in tickets] == [0, 1]
    assert (tickets[0].id, tickets[1].id[:5]) == ("run-7", "g1-0-")


def route_turn(router: Router, conversation: str, *components: str) -> ExecutorRoute:
    assignment = router.assign(make_calls(*components or STAGES), "m")
    return router.route(assignment, router.issue_ticket("m", assignment.kind, cache_key=conversation))


def test_the_turns_of_a_conversation_take_one_path_to_one_executor():
    gateway_router = make_router("g1", ("e0", "E"), ("l0", "L"), ("l1", "L"), ("m0", "EL"), ("m1", "EL"))
    first = {f"talk{number}": route_turn(gateway_router, f"talk{number}") for number in range(20)}
    for conversation, route in first.items():
        for _ in range(3):
            route_request(gateway_router)  # other requests in between
            assert route_turn(gateway_router, conversation)[:3] == route[:3]

    shares = Counter(route.path for route in first.values())
    assert shares["E>L"] == pytest.approx(14, abs=1)
    assert len({route.executors for route in first.values()}) == 4


def test_a_turn_goes_elsewhere_when_its_executor_is_gone_or_busy():
    gateway_router = make_router("g1", ("e0", "E"), ("l0", "L"), ("l1", "L"))
    _, before = route_turn(gateway_router, "talk").executors
    add_work(gateway_router, before, 10)
    _, busy = route_turn(gateway_router, "talk").executors
    gateway_router.members.remove(busy)
    _, final_executor = route_turn(gateway_router, "talk").executors

    assert busy != before == final_executor
