"""Scaling the number of GPUs with the rate, without flapping."""

import random
from itertools import pairwise

import pytest

from omnibus_planner.autoscale.policy import DeploymentCapacity, ScalingGoal, ScalingPolicy, ScalingSnapshot, Verdict
from tests.unit.planner.adapting import (
    GPUS,
    PATIENCE,
    RULES,
    START,
    AdaptationClock,
    AdaptedDeployment,
    Cells,
    hold_verdict,
    make_load,
    plan_fewest,
)

# Fewest GPUs for a rate


def test_a_rate_that_uses_up_half_of_the_headroom_is_answered_at_once():
    house = plan_fewest(25.0)
    assert (house.cells, house.cells.serves(make_load(25.0))) == (Cells(2, 3), 30.0)
    assert house.run(30, make_load(27.0)) == []

    assert house.run(2, make_load(28.0)) == [(31.0, Verdict.REPLAN, Cells(2, 4))]


def test_longer_answers_at_the_same_rate_need_more_gpus():
    house = plan_fewest()
    assert house.run(100, make_load(20.0)) == []

    changes = house.run(2, make_load(20.0, tokens=200))

    assert [cells for _, _, cells in changes] == [Cells(2, 5)]


def test_fewer_gpus_have_to_be_enough_for_long():
    house = plan_fewest()
    house.run(100, make_load(20.0))
    before = sum(house.cells)

    changes = house.run(200, make_load(8.0))

    assert sum(house.cells) < before
    assert changes == [(100 + 2 * PATIENCE + 1, Verdict.REPLAN, Cells(1, 1))]


def test_down_goes_no_lower_than_the_highest_rate_of_late_needs():
    house = plan_fewest(40.0)

    for _ in range(30):
        house.run(20, make_load(8.0))
        house.run(5, make_load(20.0))

    assert [cells for _, _, cells in house.changes] == [house.best(make_load(20.0))]


def test_what_was_declared_counts_until_it_was_seen_for_long_that_less_comes():
    house = plan_fewest()

    changes = house.run(int(2 * PATIENCE), None)

    assert changes == []


def test_when_nothing_comes_the_least_that_serves_is_left():
    house = plan_fewest()
    house.run(100, make_load(20.0))

    house.run(300, make_load(0.0))

    assert house.cells == Cells(1, 1)
    assert len(house.changes) == 1


def test_all_gpus_in_use_are_not_planned_again_and_again():
    house = plan_fewest()

    changes = house.run(1000, make_load(500.0))

    assert [sum(cells) for _, _, cells in changes] == [GPUS]


def test_path_rates_alone_are_enough_at_once_when_they_serve_the_rate():
    clock = AdaptationClock()
    adapt = ScalingPolicy({"vl": ScalingGoal(gpus=True, headroom=0.2)}, RULES, START, clock)
    now, best = DeploymentCapacity({"vl": 20.0}, 4), DeploymentCapacity({"vl": 36.0}, 5, START)

    enough = ScalingSnapshot({"vl": make_load(20.0)}, now, DeploymentCapacity({"vl": 24.0}, 4), best)
    little = enough._replace(rerouted=DeploymentCapacity({"vl": 21.0}, 4))

    assert hold_verdict(adapt, clock, enough, 10) is Verdict.REROUTE
    assert hold_verdict(adapt, clock, little, 1) is Verdict.REPLAN


def test_path_rates_are_the_most_that_can_be_done_without_gpus_to_spare():
    clock = AdaptationClock()
    adapt = ScalingPolicy({"vl": ScalingGoal(gpus=True, headroom=0.2)}, RULES, START, clock)
    rerouted_capacity = DeploymentCapacity({"vl": 22.0}, 4)

    scene = ScalingSnapshot(
        {"vl": make_load(30.0)}, DeploymentCapacity({"vl": 20.0}, 4), rerouted_capacity, rerouted_capacity
    )

    assert hold_verdict(adapt, clock, scene, 10) is Verdict.REROUTE


# No flapping


@pytest.mark.parametrize("period", [1, 7, 25, 45, 90, 200])
@pytest.mark.parametrize("goal", [ScalingGoal(), ScalingGoal(gpus=True, headroom=0.2, rate=20.0)])
def test_a_load_that_goes_to_and_fro_causes_no_more_than_one_change_in_a_cooldown(goal: ScalingGoal, period: int):
    house = AdaptedDeployment(goal)

    for second in range(3000):
        high = second // period % 2 == 0
        house.second(make_load(36.0, image_share=1.0) if high else make_load(9.0, image_share=0.2))

    assert are_spaced(house)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    "goal", [ScalingGoal(), ScalingGoal(gpus=True, headroom=0.2, rate=20.0), ScalingGoal(gpus=True, rate=5.0)]
)
def test_no_load_whatsoever_causes_more_than_one_change_in_a_cooldown(goal: ScalingGoal, seed: int):
    chance = random.Random(seed)
    house, model_load = AdaptedDeployment(goal), make_load(20.0)

    for _ in range(2000):
        if chance.random() < 0.05:
            rate = chance.choice([0.0, chance.uniform(0.1, 5.0), chance.uniform(5.0, 80.0)])
            model_load = make_load(rate, chance.random(), chance.choice([20.0, 100.0, 700.0]))
        if chance.random() < 0.01:
            house.adapt.reset_measurements()
        house.second(model_load if chance.random() < 0.98 else None)

    assert are_spaced(house)
    assert len(house.changes) <= house.now / RULES.cooldown + 1


def are_spaced(house: AdaptedDeployment) -> bool:
    times = [at for at, _, _ in house.changes]
    return all(later - earlier >= RULES.cooldown for earlier, later in pairwise(times))
