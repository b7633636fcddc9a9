"""Routes over several plan models, options lent between models, and pins."""

from collections import Counter
from typing import Any

import pytest

from omnibus.bus.messages import ExecutorStatus
from omnibus.errors import BadRequest, NotFound, StageUnavailable
from omnibus.graph import GraphNode
from omnibus.plan import DeploymentOption, ModelPlan, Path, Plan
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.router import ExecutorRoute, Router

TYPE = "vision+thinker"
E, L, EL = (
    DeploymentOption(("vision",), "encoder"),
    DeploymentOption(("thinker",), "llm"),
    DeploymentOption(("vision", "thinker"), "llm"),
)
EXECUTORS = {"org/a": ("E", "L", "EL"), "b": ("L",), "s": ("spell",)}


def make_model_plan(
    options: dict[str, DeploymentOption], tasks: dict[str, str], **types: tuple[Path, ...]
) -> ModelPlan:
    types_by_name = {name.replace("_", "+"): paths for name, paths in types.items()}
    return ModelPlan("f", "", tuple(tasks), {"image": "vision"}, options, types_by_name, tasks=tasks)


def make_paths(together: float = 30, first: str = "E") -> tuple[Path, ...]:
    apart = Path(f"{first}>L", {"vision": first, "thinker": "L"}, 70)
    return apart, Path("EL", {"vision": "EL", "thinker": "EL"}, together)


def make_plan() -> Plan:
    """``b`` borrows the encoder of ``org/a``; ``s`` is an app's own task in two options."""
    lent = DeploymentOption(("vision",), "encoder", 0, of="org/a/E")
    apart = Path("org/a/E>L", {"vision": "org/a/E", "thinker": "L"}, 1)
    spells = (Path("spell", {"spell": "spell"}, 1), Path("other", {"spell": "other"}, 1))
    options = {"spell": DeploymentOption(("spell",), "generator"), "other": DeploymentOption(("spell",), "generator")}
    models = {
        "org/a": make_model_plan(
            {"E": E, "L": L, "EL": EL}, {"vision": "see", "thinker": "think-a"}, vision_thinker=make_paths()
        ),
        "b": make_model_plan(
            {"org/a/E": lent, "L": L}, {"vision": "see", "thinker": "think-b"}, vision_thinker=(apart,)
        ),
        "s": make_model_plan(options, {"spell": "spell"}, spell=spells),
    }
    return Plan(1, 0, 1000.0, models)


def make_status(id: str, name: str, option: str, *components: str) -> ExecutorStatus:
    return ExecutorStatus(id, name, option, components, (), "n", "ready", 8)


def make_router(gateway: str = "g") -> Router:
    """Return a router with one executor of each option: ``org/a-E`` and so on."""
    new_router = Router(gateway, ExecutorTable())
    new_router.plan = make_plan()
    for name, spec in new_router.plan.models.items():
        for option in spec.options:
            if "/" not in option:
                new_router.members.handle_status(
                    make_status(f"{name}-{option}", name, option, *spec.options[option].components)
                )
    return new_router


def make_nodes(*tasks: str) -> list[GraphNode]:
    """Return nodes that each use the outputs of all previous ones."""
    return [GraphNode(task, "", {}, "", tuple((n, "out") for n in range(index))) for index, task in enumerate(tasks)]


BOTH = ("see", "think-a", "spell")


def route_tasks(toy_router: Router, *tasks: str, model: str = "", **more: Any) -> ExecutorRoute:
    assignment = toy_router.assign(make_nodes(*tasks or BOTH), model)
    return toy_router.route(assignment, toy_router.issue_ticket(assignment.model, assignment.kind), **more)


def test_a_route_over_several_models_names_them():
    route = route_tasks(make_router(), pinned="org/a=E>L,s=spell")

    assert route.path == "org/a=E>L,s=spell"
    assert route.options == ("org/a/E", "org/a/L", "s/spell")
    assert route.executors == ("org/a-E", "org/a-L", "s-spell")


def test_each_part_is_split_as_its_own_plan_says():
    toy_router = make_router()

    path_counts = Counter(path for _ in range(1000) for path in route_tasks(toy_router).path.split(","))

    assert abs(path_counts["org/a=E>L"] - 700) <= 3
    assert abs(path_counts["s=spell"] - 500) <= 3


def test_the_stage_that_is_missing_is_named_with_its_model():
    toy_router = make_router()
    for executor in ("s-spell", "s-other"):
        toy_router.members.remove(executor)

    with pytest.raises(StageUnavailable, match="'spell' of s") as caught:
        route_tasks(toy_router)
    assert caught.value.stage == "spell"


def test_a_borrowed_option_is_served_by_its_lender():
    route = route_tasks(make_router(), "see", "think-b", model="b")

    assert (route.path, route.options) == ("org/a/E>L", ("org/a/E", "L"))
    assert route.executors == ("org/a-E", "b-L")


@pytest.mark.parametrize("path_name", ["org/a/E>L", "E>L", "b=E>L"])
def test_a_path_through_a_borrowed_option_has_its_own_name_too(path_name: str):
    toy_router = make_router()
    several = ("see", "think-b", "spell") if "=" in path_name else ("see", "think-b")

    assert "org/a/E>L" in route_tasks(toy_router, *several, model="b", pinned=path_name).path


def test_without_the_lender_the_borrowers_stage_is_missing():
    toy_router = make_router()
    toy_router.members.remove("org/a-E")

    with pytest.raises(StageUnavailable, match="'vision' of b"):
        route_tasks(toy_router, "see", "think-b", model="b")


def test_a_lender_makes_the_borrowers_stage_ready():
    toy_router = make_router()

    assert toy_router.stage_states("b") == {"vision": "ok", "thinker": "ok"}
    toy_router.members.remove("org/a-E")
    assert toy_router.stage_states("b") == {"thinker": "ok"}


# Along recorded options


@pytest.mark.parametrize(("tasks", "model_name"), [(BOTH, ""), (("see", "think-b"), "b")], ids=["several", "borrowed"])
def test_a_replay_goes_along_what_was_recorded(tasks: tuple[str, ...], model_name: str):
    toy_router = make_router()
    assignment = toy_router.assign(make_nodes(*tasks), model_name)
    before = toy_router.route(assignment, toy_router.issue_ticket(assignment.model, assignment.kind))

    assert toy_router.route_by_options(assignment.model, assignment.nodes, before.options) == before


def test_a_replay_finds_the_lender_when_the_plan_has_it_no_more():
    toy_router = make_router()
    assignment = toy_router.assign(make_nodes("see", "think-b"), "b")
    assert toy_router.plan is not None
    toy_router.plan.models["b"].options.pop("org/a/E")
    toy_router.plan = toy_router.plan

    assert toy_router.route_by_options("b", assignment.nodes, ("org/a/E", "L")).executors == ("org/a-E", "b-L")


def test_a_replay_avoids_who_is_lost_and_keeps_its_options():
    toy_router = make_router()
    toy_router.members.handle_status(make_status("more", "s", "spell"))
    assignment = toy_router.assign(make_nodes("spell"))

    assert toy_router.route_by_options("s", assignment.nodes, ["spell"], frozenset({"s-spell"})).executors == ("more",)
    with pytest.raises(StageUnavailable, match="option 'spell' of s"):
        toy_router.route_by_options("s", assignment.nodes, ["spell"], frozenset({"s-spell", "more"}))


def test_a_replay_names_a_model_that_is_gone():
    toy_router = make_router()
    assignment = toy_router.assign(make_nodes(*BOTH))
    assert toy_router.plan is not None
    toy_router.plan.models.pop("s")

    with pytest.raises(NotFound, match="unknown model 's'"):
        toy_router.route_by_options(assignment.model, assignment.nodes, ("org/a/E", "org/a/L", "s/spell"))


# Pins


def list_paths(toy_router: Router, *tasks: str, **more: Any) -> set[str]:
    return {route_tasks(toy_router, *tasks, **more).path for _ in range(30)}


@pytest.mark.parametrize(
    ("pins", "path"),
    [
        (("apart", ""), "E>L"),
        (("", "apart"), "E>L"),
        (("together", ""), "EL"),
        (("", "together"), "EL"),
        (("path:E>L", "path:E>L"), "E>L"),
        (("", "path:EL"), "EL"),
    ],
)
def test_a_pin_leaves_only_the_paths_that_keep_it(pins: tuple[str, ...], path: str):
    assert list_paths(make_router(), "see", "think-a", pins=pins) == {path}


def test_pins_that_forbid_nothing_leave_the_split_alone():
    toy_router = make_router()

    path_counts = Counter(route_tasks(toy_router, "see", "think-a", pins=("", "")).path for _ in range(1000))

    assert abs(path_counts["E>L"] - 700) <= 2


def test_among_the_paths_that_keep_a_pin_their_rates_decide():
    toy_router = make_router()
    assert toy_router.plan is not None
    options = {"vision": "E", "thinker": "X"}
    toy_router.plan.models["org/a"].types[TYPE] = (*make_paths(), Path("E>X", options, 140))
    toy_router.members.handle_status(make_status("x", "org/a", "X"))

    path_counts = Counter(route_tasks(toy_router, "see", "think-a", pins=("apart", "")).path for _ in range(900))

    assert path_counts.keys() == {"E>L", "E>X"}
    assert abs(path_counts["E>L"] - 300) <= 3


def test_encoders_may_stay_together_when_they_are_apart():
    toy_router = make_router()
    tasks = {"vision": "see", "audio": "hear", "thinker": "think"}
    options = {
        "VA": DeploymentOption(("vision", "audio"), "encoder"),
        "T": L,
        "M": DeploymentOption(tuple(tasks), "llm"),
    }
    omni_paths = (
        Path("VA>T", {"vision": "VA", "audio": "VA", "thinker": "T"}, 1),
        Path("M", dict.fromkeys(tasks, "M"), 1),
    )
    types = {"vision+audio+thinker": omni_paths}
    encoders = {"image": "vision", "audio": "audio"}
    omni = ModelPlan("f", "", tuple(tasks), encoders, options, types, tasks=tasks)
    toy_router.plan = Plan(2, 0, 1000.0, {"o": omni})
    for option in options:
        toy_router.members.handle_status(make_status(f"o-{option}", "o", option))

    assert list_paths(toy_router, "see", "hear", "think", pins=("apart", "apart", "")) == {"VA>T"}
    with pytest.raises(BadRequest, match="no path"):
        route_tasks(toy_router, "see", "hear", "think", pins=("together", "apart", ""))


def test_a_pin_that_no_path_keeps_is_refused_with_what_there_is():
    toy_router = make_router()

    with pytest.raises(BadRequest, match="no path for vision[+]thinker has vision 'together'; choose one of org/a/E>L"):
        route_tasks(toy_router, "see", "think-b", model="b", pins=("together", ""))
    with pytest.raises(BadRequest, match="'path:X'; choose one of E>L, EL"):
        route_tasks(toy_router, "see", "think-a", pins=("", "path:X"))


def test_a_pin_of_no_known_kind_is_refused():
    with pytest.raises(BadRequest, match="unknown pin 'alone'"):
        route_tasks(make_router(), "see", "think-a", pins=("alone", ""))
    with pytest.raises(BadRequest, match="1 pins for 2 nodes"):
        route_tasks(make_router(), "see", "think-a", pins=("apart",))


def test_pins_hold_within_their_part():
    assert {path.split(",")[0] for path in list_paths(make_router(), pins=("together", "", ""))} == {"org/a=EL"}
    assert {path.split(",")[0] for path in list_paths(make_router(), pins=("apart", "", ""))} == {"org/a=E>L"}


def test_a_header_may_name_the_path_of_some_models():
    path_names = list_paths(make_router(), pinned="s=other")

    assert path_names == {"org/a=E>L,s=other", "org/a=EL,s=other"}


@pytest.mark.parametrize("header", ["E>L", "b=L", "s=spell,nobody=L"])
def test_a_header_that_names_no_model_of_the_request_is_refused(header: str):
    with pytest.raises(BadRequest, match="write model=path for some of org/a, s") as caught:
        route_tasks(make_router(), pinned=header)
    assert caught.value.param == "x-omnibus-path"


def test_a_header_that_names_no_path_is_refused_with_what_there_is():
    with pytest.raises(BadRequest, match="no path 's=L' for spell; choose one of s=spell, s=other"):
        route_tasks(make_router(), pinned="s=L")


def test_header_and_pin_that_exclude_each_other_are_refused():
    with pytest.raises(BadRequest, match="'apart'; choose one of EL"):
        route_tasks(make_router(), "see", "think-a", pinned="EL", pins=("apart", ""))
