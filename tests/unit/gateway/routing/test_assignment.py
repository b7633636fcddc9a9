"""Nodes belong to the plan model that binds their unit task."""

import pytest

from omnibus.errors import BadRequest, NotFound, StageUnavailable
from omnibus.graph import GraphNode, make_ref
from omnibus.plan import ModelPlan, Plan
from omnibus_gateway.routing.assignment import Assignment, PlanScope
from omnibus_gateway.routing.executors import ExecutorTable
from omnibus_gateway.routing.router import Router


def make_model(**tasks: str) -> ModelPlan:
    """Return a model of components with the names of their unit tasks; the encoder is called vision."""
    return ModelPlan("f", "", tuple(tasks), {"image": "vision"}, {}, {}, tasks=tasks)


SEES = make_model(vision="see", thinker="think-a")
ALSO_SEES = make_model(vision="see", thinker="think-b")
SPELLS = make_model(spell="spell")


def make_plan(**models: ModelPlan) -> Plan:
    return Plan(1, 0, 1000.0, models)


def make_node(task: str, *uses: int, component: str = "", model: str = "", **more: object) -> GraphNode:
    inputs = {f"i{source}": make_ref(source, "out") for source in uses}
    return GraphNode(task, component, {**inputs, **more}, "d", tuple((source, "out") for source in uses), model)


def assign_nodes(plan: Plan, *nodes: GraphNode, model: str = "") -> Assignment:
    return PlanScope(plan).assign(nodes, model)


def list_models(assignment: Assignment) -> list[str]:
    """Return the model that runs each node."""
    return [part.model for index in range(len(assignment.nodes)) for part in assignment.parts if index in part.nodes]


def test_a_task_says_whose_model_runs_it():
    assignment = assign_nodes(
        make_plan(a=SEES, s=SPELLS), make_node("see", component="eye", model="x"), make_node("think-a", 0)
    )

    [part] = assignment.parts
    assert (assignment.model, assignment.kind) == ("a", "vision+thinker")
    assert (part.model, part.kind, part.used) == ("a", "vision+thinker", frozenset({"vision", "thinker"}))
    assert (part.nodes, part.components) == ((0, 1), ("vision", "thinker"))


def test_nodes_are_written_as_the_plan_calls_them():
    original_node = make_node("see", component="eye", model="x", media="picture")

    [assigned_node] = assign_nodes(make_plan(a=SEES), original_node).nodes

    assert (assigned_node.component, assigned_node.model) == ("vision", "")
    assert (assigned_node.task, assigned_node.inputs, assigned_node.digest, assigned_node.uses) == (
        original_node.task,
        original_node.inputs,
        "d",
        original_node.uses,
    )


def test_a_graph_over_several_models_has_a_part_for_each():
    assignment = assign_nodes(
        make_plan(b=SPELLS, a=SEES),
        make_node("spell"),
        make_node("see"),
        make_node("think-a", 0, 1),
        make_node("spell", 2),
    )

    assert (assignment.model, assignment.kind) == ("a+b", "a=vision+thinker,b=spell")
    assert [(part.model, part.kind, part.nodes, part.components) for part in assignment.parts] == [
        ("a", "vision+thinker", (1, 2), ("vision", "thinker")),
        ("b", "spell", (0, 3), ("spell", "spell")),
    ]
    assert [(each.model, each.component) for each in assignment.nodes] == [
        ("b", "spell"), ("a", "vision"), ("a", "thinker"), ("b", "spell"),
    ]  # fmt: skip
    assert len({part.salt for part in assignment.parts}) == 2


@pytest.mark.parametrize(("thinker", "owner"), [("think-a", "a"), ("think-b", "b")])
def test_a_shared_task_goes_with_its_consumer(thinker: str, owner: str):
    assignment = assign_nodes(make_plan(a=SEES, b=ALSO_SEES), make_node("see", model="a"), make_node(thinker, 0))

    assert (assignment.model, list_models(assignment)) == (owner, [owner, owner])


def test_a_shared_task_goes_with_the_first_of_its_consumers_that_has_it():
    assignment = assign_nodes(
        make_plan(a=SEES, b=ALSO_SEES, s=SPELLS),
        make_node("see"),
        make_node("spell", 0),
        make_node("think-b", 0),
        make_node("think-a", 0),
    )

    assert list_models(assignment) == ["b", "s", "b", "a"]


def test_shared_tasks_in_a_row_go_together():
    first, second = (make_model(vision="see", resample="shrink", thinker=f"think-{name}") for name in "ab")

    assignment = assign_nodes(
        make_plan(a=first, b=second), make_node("see"), make_node("shrink", 0), make_node("think-b", 1)
    )

    assert (assignment.model, assignment.kind) == ("b", "vision+resample+thinker")


@pytest.mark.parametrize(("model_name", "owner"), [("b", "b"), ("a", "a"), ("", "a"), ("s", "a"), ("unknown", "a")])
def test_a_shared_task_without_such_a_consumer_goes_where_it_says_or_to_the_first(model_name: str, owner: str):
    assignment = assign_nodes(
        make_plan(b=ALSO_SEES, a=SEES, s=SPELLS), make_node("see", model=model_name), make_node("spell", 0)
    )

    assert list_models(assignment) == [owner, "s"]


def test_a_request_for_a_model_keeps_to_what_that_model_has():
    assignment = assign_nodes(
        make_plan(a=SEES, b=ALSO_SEES), make_node("see", model="a"), make_node("think-b", 0), model="b"
    )

    assert (assignment.model, assignment.kind, list_models(assignment)) == ("b", "vision+thinker", ["b", "b"])


def test_a_request_for_a_model_may_use_others_too():
    assignment = assign_nodes(make_plan(a=SEES, s=SPELLS), make_node("think-a"), make_node("spell", 0), model="a")

    assert (assignment.model, assignment.kind) == ("a+s", "a=thinker,s=spell")


@pytest.mark.parametrize("model_name", ["", "a"])
def test_a_task_that_nobody_runs_is_named(model_name: str):
    with pytest.raises(StageUnavailable, match="no plan runs unit task 'sing'.*register an app"):
        assign_nodes(
            make_plan(a=SEES),
            make_node("think-a"),
            make_node("sing", 0, component="thinker", model="a"),
            model=model_name,
        )


def test_a_graph_without_nodes_is_refused():
    with pytest.raises(BadRequest, match="at least one"):
        assign_nodes(make_plan(a=SEES))


@pytest.mark.parametrize("model_name", ["", "old"])
def test_a_plan_without_names_of_tasks_goes_by_components(model_name: str):
    component_model = ModelPlan("f", "", ("vision", "thinker"), {}, {}, {})
    nodes = [make_node("x", component="vision", model="old"), make_node("y", 0, component="thinker", model="old")]

    assignment = assign_nodes(make_plan(old=component_model), *nodes, model=model_name)

    assert (assignment.model, assignment.kind) == ("old", "vision+thinker")
    with pytest.raises(StageUnavailable, match="unit task 'z'"):
        assign_nodes(make_plan(old=component_model), make_node("z", component="talker", model="old"), model=model_name)


def test_graphs_of_one_shape_keep_their_own_inputs():
    scope = PlanScope(make_plan(a=SEES))

    texts = [scope.assign([make_node("think-a", text=text)]).nodes[0].inputs["text"] for text in ("one", "two")]

    assert texts == ["one", "two"]


def test_graphs_of_the_same_tasks_with_other_edges_differ():
    scope = PlanScope(make_plan(a=SEES, b=ALSO_SEES))
    tasks = (
        [make_node("see"), make_node("think-a", 0), make_node("think-b")],
        [make_node("see"), make_node("think-a"), make_node("think-b", 0)],
    )

    assert [list_models(scope.assign(nodes))[0] for nodes in tasks] == ["a", "b"]


def test_the_router_goes_by_the_plan_in_force():
    router = Router("g", ExecutorTable())
    with pytest.raises(StageUnavailable, match="no plan yet"):
        router.assign([make_node("spell")])

    router.plan = make_plan(s=SPELLS)
    assert router.assign([make_node("spell")]).model == "s"
    router.plan = make_plan(t=SPELLS)
    assert router.assign([make_node("spell")]).model == "t"
    with pytest.raises(NotFound, match=r"unknown model 's' \(known: t\)"):
        router.assign([make_node("spell")], "s")
