"""Plans by the rules of other systems: the choice of each for one profile, and its rejections."""

import pytest

from omnibus.errors import BadRequest
from omnibus_planner.declared.planned_spec import GpuType
from omnibus_planner.solve.problem import Infeasible
from tests.unit.planner.optimize.testbed import (
    SPLIT,
    E,
    L,
    count_replicas,
    make_goals,
    make_model,
    make_option,
    make_planner,
    make_profile,
    make_types,
)

STAGED = make_profile(
    {
        "E": make_option("vision", ("vision", 0.1), gpu="H100"),
        "P": make_option("prefill", ("prefill", 0.2), gpu="H100"),
        "D": make_option("decode", ("decode", 0.5), gpu="H100"),
        "EP": make_option("vision+prefill", ("vision+prefill", 0.36), gpu="H100"),
        "ED": make_option("vision+decode", ("vision+decode", 0.75), ("vision", 0.2), ("decode", 0.55), gpu="H100"),
    },
    components=("vision", "prefill", "decode"),
    types=make_types(vision_prefill_decode=1.0),
    order=(("vision", "prefill"), ("prefill", "decode")),
)


def plan_replicas(model_profile=None, declaration=None, **asked):
    result = make_planner(model_profile, declaration=declaration, **asked).plan(explain=False)
    return {name: each.replicas for name, each in result.models["q"].options.items()}, result.capacity["q"]


def test_a_monolith_takes_all_gpus_or_as_many_as_the_rate_needs():
    counts, most = plan_replicas(policy="monolith")
    assert counts == {"EL": 8}
    assert most == pytest.approx(8 / (0.6 * 0.7 + 0.4 * 0.35))

    counts, _ = plan_replicas(policy="monolith", goal="gpus", rate=5.0, headroom=0.0)
    assert counts == {"EL": 3}  # 5 x 0.56 s of work per second


def test_load_over_capacity_rounds_each_stage_up():
    counts, most = plan_replicas(policy="modserve")
    assert counts == {"E": 2, "L": 5}
    assert most == pytest.approx(5 / 0.3)

    counts, _ = plan_replicas(policy="modserve", goal="gpus", rate=10.0, headroom=0.0)
    assert counts == {"E": 2, "L": 3}  # 1.2 and 3 s of work per second


def test_algorithm_2_compares_its_three_methods_with_instances_by_their_work():
    counts, _ = plan_replicas(STAGED, SPLIT, policy="triinfer")
    assert counts == {"E": 1, "P": 2, "D": 5}  # 8 x 0.1, 0.2 and 0.5 of 0.8 s
    without = make_profile({name: each for name, each in STAGED.options.items() if name != "D"}, components=STAGED.components,
                      types=STAGED.types, order=STAGED.order)  # fmt: skip
    with pytest.raises(BadRequest, match="no option is D alone"):
        plan_replicas(without, SPLIT, policy="triinfer")


def test_greedy_cells_take_small_ones_where_one_larger_cell_is_enough():
    apart = make_profile({"E": E, "L": L})  # cells of 2 GPUs serve 3.3 req/s, of 4 GPUs 8.3

    exact, _ = plan_replicas(apart, cells=4, goal="gpus", rate=8.0, headroom=0.0)
    greedy, _ = plan_replicas(apart, policy="greedy_cells", cells=4, goal="gpus", rate=8.0, headroom=0.0)

    assert exact == {"E": 1, "L": 3}
    assert greedy == {"E": 3, "L": 3}


def test_cells_with_goals_say_what_all_of_them_may_do_together():
    """One cell has less room than all. Its replicas share no queue with those of another."""
    apart = make_profile({"E": E, "L": L})
    one, four = (
        make_planner(
            apart, {"H100": GpuType(count, 80.0)}, policy="greedy_cells", cells=8, goals=make_goals(done=8.0)
        ).plan()
        for count in (8, 32)
    )

    assert count_replicas(four.models["q"]) == {
        name: 4 * count for name, count in count_replicas(one.models["q"]).items()
    }
    assert max(count_replicas(four.models["q"]).values()) > 8
    assert four.capacity["q"] == pytest.approx(4 * one.capacity["q"])
    assert four.explain["planned"]["models"]["q"]["capacity"] == pytest.approx(four.capacity["q"])


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"policy": "best"}, "policy is 'best'; there is monolith, greedy_cells, triinfer, modserve"),
        ({"policy": "greedy_cells"}, "needs 'cells'"),
        ({"policy": "monolith", "cells": 2}, "does not support cells"),
        ({"policy": "modserve", "mixes": ({"thinker": 1.0},)}, "supports only one mix"),
    ],
)
def test_what_a_policy_does_not_know_is_refused(fields, fault):
    with pytest.raises(BadRequest, match=fault):
        make_model(**fields)


def test_a_policy_that_nothing_fits_says_so():
    with pytest.raises(Infeasible, match="no option runs all components"):
        plan_replicas(make_profile({"E": E, "L": L}), policy="monolith")
