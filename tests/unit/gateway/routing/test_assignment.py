"""Nodes belong to the plan model that binds their unit task."""

import pytest

from omnibus.errors import BadRequest, NotFound, StageUnavailable
from omnibus.graph import GraphNode, make_ref
from omnibus.plan import ModelPlan, Plan
from omnibus_gateway.routing.assignment import Assignment, PlanScope
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.router import Router


def model(**tasks: str) -> ModelPlan:
    """Return a model of components with the names of their unit tasks; the encoder is called vision."""
    return ModelPlan("f", "", tuple(tasks), {"image": "vision"}, {}, {}, tasks=tasks)


SEES = model(vision="see", thinker="think-a")
ALSO_SEES = model(vision="see", thinker="think-b")
SPELLS = model(spell="spell")


def plan(**models: ModelPlan) -> Plan:
    return Plan(1, 0, 1000.0, models)


def node(task: str, *uses: int, component: str = "", model: str = "", **more: object) -> GraphNode:
    inputs = {f"i{source}": make_ref(source, "out") for source in uses}
    return GraphNode(task, component, {**inputs, **more}, "d", tuple((source, "out") for source in uses), model)


def assigned(made: Plan, *nodes: GraphNode, model: str = "") -> Assignment:
    return PlanScope(made).assign(nodes, model)


def models(found: Assignment) -> list[str]:
    """Return the model that runs each node."""
    return [part.model for index in range(len(found.nodes)) for part in found.parts if index in part.nodes]


def test_a_task_says_whose_model_runs_it():
    found = assigned(plan(a=SEES, s=SPELLS), node("see", component="eye", model="x"), node("think-a", 0))

    [part] = found.parts
    assert (found.model, found.kind) == ("a", "vision+thinker")
    assert (part.model, part.kind, part.used) == ("a", "vision+thinker", frozenset({"vision", "thinker"}))
    assert (part.nodes, part.components) == ((0, 1), ("vision", "thinker"))


def test_nodes_are_written_as_the_plan_calls_them():
    told = node("see", component="eye", model="x", media="picture")

    [written] = assigned(plan(a=SEES), told).nodes

    assert (written.component, written.model) == ("vision", "")
    assert (written.task, written.inputs, written.digest, written.uses) == (told.task, told.inputs, "d", told.uses)


def test_a_graph_over_several_models_has_a_part_for_each():
    found = assigned(plan(b=SPELLS, a=SEES), node("spell"), node("see"), node("think-a", 0, 1), node("spell", 2))

    assert (found.model, found.kind) == ("a+b", "a=vision+thinker,b=spell")
    assert [(part.model, part.kind, part.nodes, part.components) for part in found.parts] == [
        ("a", "vision+thinker", (1, 2), ("vision", "thinker")),
        ("b", "spell", (0, 3), ("spell", "spell")),
    ]
    assert [(each.model, each.component) for each in found.nodes] == [
        ("b", "spell"), ("a", "vision"), ("a", "thinker"), ("b", "spell"),
    ]  # fmt: skip
    assert len({part.salt for part in found.parts}) == 2


@pytest.mark.parametrize(("thinker", "owner"), [("think-a", "a"), ("think-b", "b")])
def test_a_shared_task_goes_with_its_consumer(thinker: str, owner: str):
    found = assigned(plan(a=SEES, b=ALSO_SEES), node("see", model="a"), node(thinker, 0))

    assert (found.model, models(found)) == (owner, [owner, owner])


def test_a_shared_task_goes_with_the_first_of_its_consumers_that_has_it():
    found = assigned(
        plan(a=SEES, b=ALSO_SEES, s=SPELLS), node("see"), node("spell", 0), node("think-b", 0), node("think-a", 0)
    )

    assert models(found) == ["b", "s", "b", "a"]


def test_shared_tasks_in_a_row_go_together():
    first, second = (model(vision="see", resample="shrink", thinker=f"think-{name}") for name in "ab")

    found = assigned(plan(a=first, b=second), node("see"), node("shrink", 0), node("think-b", 1))

    assert (found.model, found.kind) == ("b", "vision+resample+thinker")


@pytest.mark.parametrize(("named", "owner"), [("b", "b"), ("a", "a"), ("", "a"), ("s", "a"), ("unknown", "a")])
def test_a_shared_task_without_such_a_consumer_goes_where_it_says_or_to_the_first(named: str, owner: str):
    found = assigned(plan(b=ALSO_SEES, a=SEES, s=SPELLS), node("see", model=named), node("spell", 0))

    assert models(found) == [owner, "s"]


def test_a_request_for_a_model_keeps_to_what_that_model_has():
    found = assigned(plan(a=SEES, b=ALSO_SEES), node("see", model="a"), node("think-b", 0), model="b")

    assert (found.model, found.kind, models(found)) == ("b", "vision+thinker", ["b", "b"])


def test_a_request_for_a_model_may_use_others_too():
    found = assigned(plan(a=SEES, s=SPELLS), node("think-a"), node("spell", 0), model="a")

    assert (found.model, found.kind) == ("a+s", "a=thinker,s=spell")


@pytest.mark.parametrize("asked", ["", "a"])
def test_a_task_that_nobody_runs_is_named(asked: str):
    with pytest.raises(StageUnavailable, match="no plan runs unit task 'sing'.*register an app"):
        assigned(plan(a=SEES), node("think-a"), node("sing", 0, component="thinker", model="a"), model=asked)


def test_a_graph_without_nodes_is_refused():
    with pytest.raises(BadRequest, match="at least one"):
        assigned(plan(a=SEES))


@pytest.mark.parametrize("asked", ["", "old"])
def test_a_plan_without_names_of_tasks_goes_by_components(asked: str):
    unnamed = ModelPlan("f", "", ("vision", "thinker"), {}, {}, {})
    nodes = [node("x", component="vision", model="old"), node("y", 0, component="thinker", model="old")]

    found = assigned(plan(old=unnamed), *nodes, model=asked)

    assert (found.model, found.kind) == ("old", "vision+thinker")
    with pytest.raises(StageUnavailable, match="unit task 'z'"):
        assigned(plan(old=unnamed), node("z", component="talker", model="old"), model=asked)


def test_graphs_of_one_shape_keep_their_own_inputs():
    scope = PlanScope(plan(a=SEES))

    found = [scope.assign([node("think-a", text=text)]).nodes[0].inputs["text"] for text in ("one", "two")]

    assert found == ["one", "two"]


def test_graphs_of_the_same_tasks_with_other_edges_differ():
    scope = PlanScope(plan(a=SEES, b=ALSO_SEES))
    tasks = [node("see"), node("think-a", 0), node("think-b")], [node("see"), node("think-a"), node("think-b", 0)]

    assert [models(scope.assign(nodes))[0] for nodes in tasks] == ["a", "b"]


def test_the_router_goes_by_the_plan_in_force():
    router = Router("g", ExecutorTable())
    with pytest.raises(StageUnavailable, match="no plan yet"):
        router.assign([node("spell")])

    router.plan = plan(s=SPELLS)
    assert router.assign([node("spell")]).model == "s"
    router.plan = plan(t=SPELLS)
    assert router.assign([node("spell")]).model == "t"
    with pytest.raises(NotFound, match=r"unknown model 's' \(known: t\)"):
        router.assign([node("spell")], "s")
