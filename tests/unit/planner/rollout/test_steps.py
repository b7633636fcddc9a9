"""Steps of a change that fit into the existing GPUs."""

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnibus.cluster.presence import ExecutorKind, replica_counts
from omnibus.plan import DeploymentOption, ModelPlan, Path
from omnibus_planner.rollout.steps import ExecutorSize, InsufficientGpus, describe_step, executor_sizes, rollout_steps
from omnibus_planner.rollout.transition_plan import owning_option, running_replicas

PARTS = ("vision", "thinker")
SEEN, TEXT = "vision+thinker", "thinker"
RUNS = {"E": ("vision",), "L": ("thinker",), "EL": PARTS, "a/E": ("vision",)}
H, A = "H100", "A100"

Models = Mapping[str, ModelPlan]


def make_model(gpu: str = H, checkpoint: str = "/m", gpus: int = 1, name: str = "m", **replicas: int) -> ModelPlan:
    """Return a model with these replicas of each option; with ``lent`` it uses the encoder of the model a."""
    lent = replicas.pop("lent", 0)
    options = {
        name: DeploymentOption(RUNS[name], "llm", count, gpus, gpu=gpu) for name, count in replicas.items() if count
    }
    if lent:
        options["a/E"] = DeploymentOption(("vision",), "llm", 0, of="a/E")
    see, think = "a/E" if lent else "E", "L"
    types = {}
    for kind in (SEEN, TEXT):
        parts = kind.split("+")
        paths = [Path("EL", dict.fromkeys(parts, "EL"), 1.0)] if "EL" in options else []
        if {see, think} <= options.keys() or (kind == TEXT and think in options):
            runs = {part: see if part == "vision" else think for part in parts}
            paths.append(Path(">".join(dict.fromkeys(runs.values())), runs, 3.0))
        if paths:
            types[kind] = tuple(paths)
    return ModelPlan("f", checkpoint, PARTS, {}, options, types, tasks={part: f"{part}-{name}" for part in PARTS})


def count_replicas(models: Models, name: str = "m") -> dict[str, int]:
    return {option: each.replicas for option, each in models[name].options.items()}


def list_steps(before: ModelPlan, after: ModelPlan, gpus: int) -> list[dict[str, int]]:
    return [count_replicas(step) for step in rollout_steps({"m": before}, {"m": after}, {H: gpus})]


# One model


def test_what_fits_beside_the_old_executors_is_one_step():
    assert list_steps(make_model(E=1, L=1), make_model(EL=2), 4) == [{"EL": 2}]


def test_types_that_are_not_declared_are_never_short():
    assert rollout_steps({"m": make_model(EL=4)}, {"m": make_model(E=2, L=2)}, {}) == [{"m": make_model(E=2, L=2)}]
    assert list_steps(make_model(EL=4, gpu=""), make_model(EL=8, gpu=""), 4) == [{"EL": 8}]


def test_what_starts_nothing_is_one_step_even_when_gpus_have_gone():
    assert list_steps(make_model(E=2, L=5), make_model(E=1, L=1), 2) == [{"E": 1, "L": 1}]


def test_what_the_goal_does_not_ask_for_leaves_first():
    assert list_steps(make_model(E=5, L=3), make_model(E=2, L=6), 8) == [{"E": 2, "L": 3}, {"E": 2, "L": 6}]


def test_no_more_leave_than_have_to():
    assert list_steps(make_model(E=5, L=3), make_model(E=4, L=3, EL=1), 8) == [
        {"E": 4, "L": 3},
        {"E": 4, "L": 3, "EL": 1},
    ]
    assert list_steps(make_model(EL=8), make_model(E=1, L=1), 8) == [{"EL": 6}, {"E": 1, "L": 1}]


def test_half_of_the_gpus_go_on_serving():
    assert list_steps(make_model(EL=8), make_model(E=4, L=4), 8) == [{"EL": 4}, {"E": 2, "L": 2}, {"E": 4, "L": 4}]


def test_fewer_than_half_serve_when_there_is_no_other_way():
    assert list_steps(make_model(EL=3), make_model(E=1, L=2), 3) == [{"EL": 1}, {"E": 1, "L": 1}, {"E": 1, "L": 2}]


def test_another_checkpoint_takes_over_as_a_whole():
    steps = rollout_steps({"m": make_model(E=2, L=2)}, {"m": make_model(checkpoint="/n", E=2, L=2)}, {H: 4})

    assert [(step["m"].checkpoint, count_replicas(step)) for step in steps] == [
        ("/m", {"E": 1, "L": 1}),
        ("/n", {"E": 1, "L": 1}),
        ("/n", {"E": 2, "L": 2}),
    ]


def test_one_part_after_the_other_where_there_is_room_for_one():
    runs = {"vision": "E2", "thinker": "L2"}
    before = make_model(E=1, L=1)
    after = msgspec.structs.replace(
        before,
        options={
            "E2": DeploymentOption(("vision",), "llm", 1, 2, gpu=H),
            "L2": DeploymentOption(("thinker",), "llm", 1, 2, gpu=H),
        },
        types={SEEN: (Path("E2>L2", runs, 1.0),)},
    )

    assert list_steps(before, after, 5) == [{"E2": 1, "L": 1}, {"E2": 1, "L2": 1}]
    with pytest.raises(InsufficientGpus, match=r"it takes 1 more of type H100 for m/E2$"):
        list_steps(before, after, 3)


def test_without_any_way_it_is_said_what_lacks():
    with pytest.raises(
        InsufficientGpus, match=r"^m stays as it was: .* it takes 1 more of type H100 for m/E, m/L$"
    ) as caught:
        list_steps(make_model(EL=2), make_model(E=1, L=1), 2)

    assert caught.value.models == {"m"}


def test_a_goal_that_is_larger_than_all_there_is_is_refused():
    with pytest.raises(InsufficientGpus, match="4 more of type H100"):
        list_steps(make_model(EL=4), make_model(EL=8), 4)


# Reasons, and paths of requests


def test_each_step_says_what_it_is_for():
    before, after = {"m": make_model(EL=8)}, {"m": make_model(E=4, L=4)}
    plans = [before, *rollout_steps(before, after, {H: 8})]

    assert [describe_step(one, other, after) for one, other in pairwise(plans)] == [
        "makes room for 4 m/E, 4 m/L",
        "4 of 8 new executors",
        "",
    ]


def test_requests_go_the_paths_that_are_left_as_often_as_replicas_are():
    mixed_model = make_model(E=2, L=2, EL=4)
    (first, *_) = rollout_steps({"m": mixed_model}, {"m": make_model(E=4, L=4)}, {H: 8})

    assert count_replicas(first) == {"E": 2, "L": 2}
    assert {kind: [path.name for path in paths] for kind, paths in first["m"].types.items()} == {
        SEEN: ["E>L"],
        TEXT: ["L"],
    }


def test_where_no_whole_path_is_left_requests_go_over_what_runs():
    before = make_model(E=1, EL=3)
    first, *_ = rollout_steps({"m": before}, {"m": make_model(L=3, E=1)}, {H: 4})

    assert count_replicas(first) == {"E": 1, "EL": 1}
    names = {path.name for path in first["m"].types[SEEN]}
    assert names <= {"EL", "E>EL"}
    assert all(path.rate > 0 for paths in first["m"].types.values() for path in paths)


# Several models


def test_models_that_need_no_gpu_change_at_once():
    spell = make_model(EL=1, gpu="", gpus=0, name="s")
    steps = rollout_steps({"m": make_model(E=5, L=3)}, {"m": make_model(E=2, L=6), "s": spell}, {H: 8})

    assert [list(step) for step in steps] == [["m", "s"], ["m", "s"]]


def test_a_model_that_goes_makes_room_for_one_that_comes():
    steps = rollout_steps({"x": make_model(EL=4)}, {"y": make_model(checkpoint="/y", name="y", E=2, L=2)}, {H: 4})

    assert [list(step) for step in steps] == [[], ["y"]]


def test_an_executor_stays_as_long_as_another_model_borrows_it():
    before = {"a": make_model(E=3, L=1), "b": make_model(checkpoint="/b", name="b", L=1, lent=1)}
    after = {"a": make_model(E=1, L=1), "b": make_model(checkpoint="/b", name="b", L=3, lent=1)}

    steps = rollout_steps(before, after, {H: 5})

    assert [count_replicas(step, "a")["E"] for step in steps] == [1, 1]
    assert all(step["b"].types.keys() == {SEEN, TEXT} for step in steps)


# Any change


def count_gpus(there: Mapping[ExecutorKind, int], sizes: Mapping[ExecutorKind, ExecutorSize]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for kind, count in there.items():
        counts[sizes[kind].gpu] += sizes[kind].gpus * count
    return counts


def merge_counts(one: Models, other: Models) -> dict[ExecutorKind, int]:
    first, second = replica_counts(one), replica_counts(other)
    return {kind: max(first.get(kind, 0), second.get(kind, 0)) for kind in first.keys() | second.keys()}


def list_served(models: Models) -> set[tuple[str, str]]:
    """Return the request types with paths, all over running executors."""
    have = running_replicas(models)
    return {
        (name, kind)
        for name, plan in models.items()
        for kind, paths in plan.types.items()
        if sum(path.rate for path in paths) > 0
        and all(
            part in plan.options[option].components and have.get(owning_option(name, option, plan.options[option]))
            for path in paths
            for part, option in path.options.items()
        )
    }


counted = st.integers(0, 3)


@st.composite
def draw_deployments(draw: st.DrawFn) -> dict[str, ModelPlan]:
    plans = {}
    for name in draw(st.sets(st.sampled_from("abc"), min_size=1)):
        e, think, el = draw(counted), draw(counted), draw(counted)
        lent = int("a" in plans and "E" in plans["a"].options and draw(st.booleans()))
        if not el and not (e and think):
            el = 1
        gpu, gpus = draw(st.sampled_from([(H, 1), (H, 1), (A, 1), (H, 2)]))
        plans[name] = make_model(
            gpu, f"/{name}{draw(st.sampled_from('112'))}", gpus, name, E=e, L=think, EL=el, lent=lent
        )
    return plans


@settings(max_examples=300, deadline=None)
@given(draw_deployments(), draw_deployments(), st.integers(0, 2))
def test_every_step_fits_and_serves_all_and_the_last_one_is_the_goal(
    before: dict[str, ModelPlan], after: dict[str, ModelPlan], spare: int
):
    sizes = {**executor_sizes(before), **executor_sizes(after)}
    old, new = count_gpus(replica_counts(before), sizes), count_gpus(replica_counts(after), sizes)
    gpus = {gpu: max(old[gpu], new[gpu]) + spare for gpu in (H, A)}

    try:
        steps = rollout_steps(before, after, gpus)
    except InsufficientGpus:
        return

    assert [*steps[-1:]] == ([after] if before != after else [])
    assert len(steps) <= 8
    for one, other in pairwise([before, *steps]):
        assert all(count_gpus(merge_counts(one, other), sizes)[gpu] <= count for gpu, count in gpus.items())
        assert list_served(before) & list_served(after) <= list_served(other)
        assert rollout_steps(other, after, gpus) == steps[steps.index(other) + 1 :]


# Roles


def make_halves(**replicas: int) -> ModelPlan:
    parts = {"P": ("prefill",), "D": ("decode",)}
    options = {name: DeploymentOption(parts[name], "llm", count, 1, gpu=H) for name, count in replicas.items()}
    path = Path("P>D", {"prefill": "P", "decode": "D"}, 1.0)
    return ModelPlan("f", "/m", ("prefill", "decode"), {}, options, {"prefill+decode": (path,)})


def test_executors_that_take_another_role_need_no_room():
    before, after = {"m": make_halves(P=3, D=1)}, {"m": make_halves(P=1, D=3)}

    assert rollout_steps(before, after, {H: 4}, switches=True) == [after]
    assert [count_replicas(step) for step in rollout_steps(before, after, {H: 4})] == [
        {"P": 1, "D": 1},
        {"P": 1, "D": 3},
    ]


def test_what_no_switch_provides_needs_room_as_ever():
    steps = rollout_steps({"m": make_halves(P=3, D=1)}, {"m": make_halves(P=2, D=3)}, {H: 5}, switches=True)

    assert steps == [{"m": make_halves(P=2, D=3)}]
    with pytest.raises(InsufficientGpus):
        rollout_steps({"m": make_halves(P=3, D=1)}, {"m": make_halves(P=3, D=2)}, {H: 4}, switches=True)
