"""Cells in plans: separate executors and paths for each, and one pool of executors when combined."""

import msgspec
import pytest

from omnibus.canary.candidate import Candidate, OptionChange, overlay_model, without_candidate
from omnibus.cells import CellShares, base_option, cell_shares, has_cells, join_cells, merge_cells, path_cell
from omnibus.cluster.presence import CELL, desired_executors
from omnibus.plan import DeploymentOption, ModelPlan, Path, Plan, decode_plan, encode_plan

KIND = "vision+thinker"


def make_cell(encoders: int = 1, rate: float = 2.0) -> ModelPlan:
    """Return a deployment of a vision model for ``rate`` requests per second."""
    options = {
        "E": DeploymentOption(("vision",), "encoder", encoders, gpus=1),
        "L": DeploymentOption(("thinker",), "llm", gpus=1),
    }
    path = Path("E>L", {"vision": "E", "thinker": "L"}, rate)
    tasks = {"vision": "encode-m-vision", "thinker": "think-m-thinker"}
    return ModelPlan("f", "/m", ("vision", "thinker"), {"image": "vision"}, options, {KIND: (path,)}, tasks=tasks)


@pytest.fixture
def two_cells() -> ModelPlan:
    return join_cells([make_cell(2, 3.0), make_cell()])


def test_each_cell_has_executors_of_its_own_and_no_path_goes_through_two(two_cells: ModelPlan):
    assert {name: (option.replicas, option.cell) for name, option in two_cells.options.items()} == {
        "E@c1": (2, "c1"), "L@c1": (1, "c1"), "E@c2": (1, "c2"), "L@c2": (1, "c2"),
    }  # fmt: skip
    assert [(path.name, path.rate, path_cell(two_cells, path)) for path in two_cells.types[KIND]] == [
        ("E@c1>L@c1", 3.0, "c1"),
        ("E@c2>L@c2", 2.0, "c2"),
    ]
    assert cell_shares(two_cells) == {"c1": 0.6, "c2": 0.4}


def test_all_cells_together_are_one_pool(two_cells: ModelPlan):
    pool = merge_cells(two_cells)

    assert {name: option.replicas for name, option in pool.options.items()} == {"E": 3, "L": 2}
    assert pool.types == make_cell(3, 5.0).types
    assert not has_cells(pool)
    assert merge_cells(join_cells([make_cell()])) == merge_cells(make_cell()) == make_cell()


def test_executors_of_a_cell_do_what_those_of_a_plan_without_cells_do(two_cells: ModelPlan):
    assert two_cells.option_origin("E@c2") == make_cell().option_origin("E")
    environments = {
        kind.option: each.env for kind, each in desired_executors(Plan(1, 0, 0.0, {"m": two_cells})).items()
    }
    assert {option: env[CELL] for option, env in environments.items()} == {
        "E@c1": "c1", "L@c1": "c1", "E@c2": "c2", "L@c2": "c2",
    }  # fmt: skip


def test_plans_without_cells_are_written_as_before_cells():
    document = msgspec.json.decode(encode_plan(Plan(1, 0, 0.0, {"m": make_cell()})))

    assert "cell" not in document["models"]["m"]["options"]["E"]
    assert all(CELL not in each.env for each in desired_executors(Plan(1, 0, 0.0, {"m": make_cell()})).values())


def test_a_plan_in_cells_can_be_written_and_read(two_cells: ModelPlan):
    plan = Plan(1, 0, 0.0, {"m": two_cells})

    assert decode_plan(encode_plan(plan)) == plan


def test_a_candidate_is_tried_in_one_cell(two_cells: ModelPlan):
    candidate = Candidate("id", "m", (OptionChange("E@c1", checkpoint="/new"),), state="canary", share=0.2)
    canary_plan = overlay_model(two_cells, candidate)

    (path,) = [path for path in canary_plan.types[KIND] if path.is_candidate]
    assert path.options == {"vision": "E@c1@canary", "thinker": "L@c1"}
    assert path_cell(canary_plan, path) == "c1"
    assert base_option(canary_plan, "E@c1") == "E"
    assert cell_shares(canary_plan) == cell_shares(two_cells)
    assert merge_cells(without_candidate(canary_plan)) == merge_cells(two_cells)


@pytest.mark.parametrize(
    ("shares", "rates"),
    [
        ({}, [3.0, 2.0]),
        ({"m/c1": 0.5}, [1.5, 2.0]),
        ({"m/c1": 0.0}, [0.0, 2.0]),
        ({"m/c1": 0.0, "m/c2": 0.0}, [3.0, 2.0]),
        ({"other/c1": 0.0}, [3.0, 2.0]),
    ],
    ids=["as planned", "half", "drained", "all drained", "another model's"],
)
def test_a_cell_gets_the_part_of_its_share_that_it_is_given(
    two_cells: ModelPlan, shares: dict[str, float], rates: list[float]
):
    assert [path.rate for path in CellShares(shares).scale_paths("m", two_cells, two_cells.types[KIND])] == rates
