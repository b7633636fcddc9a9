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


def model(options: dict[str, DeploymentOption], tasks: dict[str, str], **types: tuple[Path, ...]) -> ModelPlan:
    named = {name.replace("_", "+"): paths for name, paths in types.items()}
    return ModelPlan("f", "", tuple(tasks), {"image": "vision"}, options, named, tasks=tasks)


def paths(together: float = 30, first: str = "E") -> tuple[Path, ...]:
    apart = Path(f"{first}>L", {"vision": first, "thinker": "L"}, 70)
    return apart, Path("EL", {"vision": "EL", "thinker": "EL"}, together)


def plan() -> Plan:
    """``b`` borrows the encoder of ``org/a``; ``s`` is an app's own task in two options."""
    lent = DeploymentOption(("vision",), "encoder", 0, of="org/a/E")
    apart = Path("org/a/E>L", {"vision": "org/a/E", "thinker": "L"}, 1)
    spells = (Path("spell", {"spell": "spell"}, 1), Path("other", {"spell": "other"}, 1))
    options = {"spell": DeploymentOption(("spell",), "generator"), "other": DeploymentOption(("spell",), "generator")}
    models = {
        "org/a": model({"E": E, "L": L, "EL": EL}, {"vision": "see", "thinker": "think-a"}, vision_thinker=paths()),
        "b": model({"org/a/E": lent, "L": L}, {"vision": "see", "thinker": "think-b"}, vision_thinker=(apart,)),
        "s": model(options, {"spell": "spell"}, spell=spells),
    }
    return Plan(1, 0, 1000.0, models)


def status(id: str, name: str, option: str, *components: str) -> ExecutorStatus:
    return ExecutorStatus(id, name, option, components, (), "n", "ready", 8)


def router(gateway: str = "g") -> Router:
    """Return a router with one executor of each option: ``org/a-E`` and so on."""
    made = Router(gateway, ExecutorTable())
    made.plan = plan()
    for name, spec in made.plan.models.items():
        for option in spec.options:
            if "/" not in option:
                made.members.handle_status(status(f"{name}-{option}", name, option, *spec.options[option].components))
    return made


def nodes(*tasks: str) -> list[GraphNode]:
    """Return nodes that each use the outputs of all previous ones."""
    return [GraphNode(task, "", {}, "", tuple((n, "out") for n in range(index))) for index, task in enumerate(tasks)]


BOTH = ("see", "think-a", "spell")


def go(made: Router, *tasks: str, model: str = "", **more: Any) -> ExecutorRoute:
    assignment = made.assign(nodes(*tasks or BOTH), model)
    return made.route(assignment, made.issue_ticket(assignment.model, assignment.kind), **more)


def test_a_route_over_several_models_names_them():
    route = go(router(), pinned="org/a=E>L,s=spell")

    assert route.path == "org/a=E>L,s=spell"
    assert route.options == ("org/a/E", "org/a/L", "s/spell")
    assert route.executors == ("org/a-E", "org/a-L", "s-spell")


def test_each_part_is_split_as_its_own_plan_says():
    made = router()

    found = Counter(path for _ in range(1000) for path in go(made).path.split(","))

    assert abs(found["org/a=E>L"] - 700) <= 3
    assert abs(found["s=spell"] - 500) <= 3


def test_the_stage_that_is_missing_is_named_with_its_model():
    made = router()
    for executor in ("s-spell", "s-other"):
        made.members.remove(executor)

    with pytest.raises(StageUnavailable, match="'spell' of s") as caught:
        go(made)
    assert caught.value.stage == "spell"


def test_a_borrowed_option_is_served_by_its_lender():
    route = go(router(), "see", "think-b", model="b")

    assert (route.path, route.options) == ("org/a/E>L", ("org/a/E", "L"))
    assert route.executors == ("org/a-E", "b-L")


@pytest.mark.parametrize("pinned", ["org/a/E>L", "E>L", "b=E>L"])
def test_a_path_through_a_borrowed_option_has_its_own_name_too(pinned: str):
    made = router()
    several = ("see", "think-b", "spell") if "=" in pinned else ("see", "think-b")

    assert "org/a/E>L" in go(made, *several, model="b", pinned=pinned).path


def test_without_the_lender_the_borrowers_stage_is_missing():
    made = router()
    made.members.remove("org/a-E")

    with pytest.raises(StageUnavailable, match="'vision' of b"):
        go(made, "see", "think-b", model="b")


def test_a_lender_makes_the_borrowers_stage_ready():
    made = router()

    assert made.stage_states("b") == {"vision": "ok", "thinker": "ok"}
    made.members.remove("org/a-E")
    assert made.stage_states("b") == {"thinker": "ok"}


# Along recorded options


@pytest.mark.parametrize(("tasks", "asked"), [(BOTH, ""), (("see", "think-b"), "b")], ids=["several", "borrowed"])
def test_a_replay_goes_along_what_was_recorded(tasks: tuple[str, ...], asked: str):
    made = router()
    recorded = made.assign(nodes(*tasks), asked)
    before = made.route(recorded, made.issue_ticket(recorded.model, recorded.kind))

    assert made.route_by_options(recorded.model, recorded.nodes, before.options) == before


def test_a_replay_finds_the_lender_when_the_plan_has_it_no_more():
    made = router()
    recorded = made.assign(nodes("see", "think-b"), "b")
    assert made.plan is not None
    made.plan.models["b"].options.pop("org/a/E")
    made.plan = made.plan

    assert made.route_by_options("b", recorded.nodes, ("org/a/E", "L")).executors == ("org/a-E", "b-L")


def test_a_replay_avoids_who_is_lost_and_keeps_its_options():
    made = router()
    made.members.handle_status(status("more", "s", "spell"))
    recorded = made.assign(nodes("spell"))

    assert made.route_by_options("s", recorded.nodes, ["spell"], frozenset({"s-spell"})).executors == ("more",)
    with pytest.raises(StageUnavailable, match="option 'spell' of s"):
        made.route_by_options("s", recorded.nodes, ["spell"], frozenset({"s-spell", "more"}))


def test_a_replay_names_a_model_that_is_gone():
    made = router()
    recorded = made.assign(nodes(*BOTH))
    assert made.plan is not None
    made.plan.models.pop("s")

    with pytest.raises(NotFound, match="unknown model 's'"):
        made.route_by_options(recorded.model, recorded.nodes, ("org/a/E", "org/a/L", "s/spell"))


# Pins


def taken(made: Router, *tasks: str, **more: Any) -> set[str]:
    return {go(made, *tasks, **more).path for _ in range(30)}


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
    assert taken(router(), "see", "think-a", pins=pins) == {path}


def test_pins_that_forbid_nothing_leave_the_split_alone():
    made = router()

    found = Counter(go(made, "see", "think-a", pins=("", "")).path for _ in range(1000))

    assert abs(found["E>L"] - 700) <= 2


def test_among_the_paths_that_keep_a_pin_their_rates_decide():
    made = router()
    assert made.plan is not None
    options = {"vision": "E", "thinker": "X"}
    made.plan.models["org/a"].types[TYPE] = (*paths(), Path("E>X", options, 140))
    made.members.handle_status(status("x", "org/a", "X"))

    found = Counter(go(made, "see", "think-a", pins=("apart", "")).path for _ in range(900))

    assert found.keys() == {"E>L", "E>X"}
    assert abs(found["E>L"] - 300) <= 3


def test_encoders_may_stay_together_when_they_are_apart():
    made = router()
    tasks = {"vision": "see", "audio": "hear", "thinker": "think"}
    options = {
        "VA": DeploymentOption(("vision", "audio"), "encoder"),
        "T": L,
        "M": DeploymentOption(tuple(tasks), "llm"),
    }
    both = (
        Path("VA>T", {"vision": "VA", "audio": "VA", "thinker": "T"}, 1),
        Path("M", dict.fromkeys(tasks, "M"), 1),
    )
    types = {"vision+audio+thinker": both}
    encoders = {"image": "vision", "audio": "audio"}
    omni = ModelPlan("f", "", tuple(tasks), encoders, options, types, tasks=tasks)
    made.plan = Plan(2, 0, 1000.0, {"o": omni})
    for option in options:
        made.members.handle_status(status(f"o-{option}", "o", option))

    assert taken(made, "see", "hear", "think", pins=("apart", "apart", "")) == {"VA>T"}
    with pytest.raises(BadRequest, match="no path"):
        go(made, "see", "hear", "think", pins=("together", "apart", ""))


def test_a_pin_that_no_path_keeps_is_refused_with_what_there_is():
    made = router()

    with pytest.raises(BadRequest, match="no path for vision[+]thinker has vision 'together'; choose one of org/a/E>L"):
        go(made, "see", "think-b", model="b", pins=("together", ""))
    with pytest.raises(BadRequest, match="'path:X'; choose one of E>L, EL"):
        go(made, "see", "think-a", pins=("", "path:X"))


def test_a_pin_of_no_known_kind_is_refused():
    with pytest.raises(BadRequest, match="unknown pin 'alone'"):
        go(router(), "see", "think-a", pins=("alone", ""))
    with pytest.raises(BadRequest, match="1 pins for 2 nodes"):
        go(router(), "see", "think-a", pins=("apart",))


def test_pins_hold_within_their_part():
    assert {path.split(",")[0] for path in taken(router(), pins=("together", "", ""))} == {"org/a=EL"}
    assert {path.split(",")[0] for path in taken(router(), pins=("apart", "", ""))} == {"org/a=E>L"}


def test_a_header_may_name_the_path_of_some_models():
    found = taken(router(), pinned="s=other")

    assert found == {"org/a=E>L,s=other", "org/a=EL,s=other"}


@pytest.mark.parametrize("pinned", ["E>L", "b=L", "s=spell,nobody=L"])
def test_a_header_that_names_no_model_of_the_request_is_refused(pinned: str):
    with pytest.raises(BadRequest, match="write model=path for some of org/a, s") as caught:
        go(router(), pinned=pinned)
    assert caught.value.param == "x-omnibus-path"


def test_a_header_that_names_no_path_is_refused_with_what_there_is():
    with pytest.raises(BadRequest, match="no path 's=L' for spell; choose one of s=spell, s=other"):
        go(router(), pinned="s=L")


def test_header_and_pin_that_exclude_each_other_are_refused():
    with pytest.raises(BadRequest, match="'apart'; choose one of EL"):
        go(router(), "see", "think-a", pinned="EL", pins=("apart", ""))
