"""The measured load triggers a new plan when needed: not late, not often, not without gain."""

from omnibus_planner.autoscale.policy import DeploymentCapacity, ScalingGoal, ScalingPolicy, ScalingSnapshot, Verdict
from tests.unit.planner.adapting import (
    RULES,
    START,
    AdaptationClock,
    AdaptedDeployment,
    Cells,
    hold_verdict,
    make_load,
    plan_fewest,
)

# Most requests within the GPUs


def test_another_mix_calls_for_another_plan_once_it_has_held():
    house = AdaptedDeployment()
    assert house.run(100, make_load(30.0, image_share=1.0)) == []

    changes = house.run(100, make_load(30.0, image_share=0.2))

    assert changes == [(100 + RULES.hold + 1, Verdict.REPLAN, Cells(2, 6))]


def test_a_mix_that_goes_away_before_it_has_held_changes_nothing():
    house = AdaptedDeployment()

    for _ in range(10):
        house.run(15, make_load(30.0, image_share=0.2))
        house.run(15, make_load(30.0, image_share=1.0))

    assert house.changes == []


def test_a_mix_that_is_on_its_way_is_waited_for():
    house = AdaptedDeployment()
    house.run(100, make_load(30.0, image_share=1.0))

    house.run(int(RULES.hold) - 3, make_load(30.0, image_share=0.6))
    for second in range(10):
        house.run(1, make_load(30.0, image_share=0.6 - 0.04 * second))
    changes = house.run(100, make_load(30.0, image_share=0.2))

    assert [cells for _, _, cells in house.changes] == [Cells(2, 6)]
    assert changes == house.changes


def test_a_mix_that_never_settles_is_followed_nevertheless():
    house = AdaptedDeployment()
    house.run(100, make_load(30.0, image_share=1.0))

    for second in range(int(2 * RULES.hold) + 2):
        house.run(1, make_load(30.0, image_share=0.1 if second % 7 else 0.3))

    assert [verdict for _, verdict, _ in house.changes] == [Verdict.REPLAN]


def test_a_gain_within_the_margin_changes_nothing():
    house = AdaptedDeployment(cells=Cells(3, 5))

    changes = house.run(1000, make_load(30.0, image_share=0.65))

    assert house.best(make_load(30.0, image_share=0.65)) == Cells(3, 5)
    assert changes == []


def test_a_gain_that_dips_for_a_moment_goes_on_being_held():
    house = AdaptedDeployment()
    house.run(30, make_load(30.0, image_share=1.0))

    house.run(15, make_load(30.0, image_share=0.2))
    house.second(make_load(30.0, image_share=0.91))
    changes = house.run(15, make_load(30.0, image_share=0.2))

    assert house.best(make_load(30.0, image_share=0.91)) == Cells(4, 4)
    assert changes == []  # it fell below half of the margin, so the time restarts


def test_longer_answers_at_the_same_rate_and_mix_call_for_another_plan():
    house = AdaptedDeployment(cells=Cells(2, 6))
    assert house.run(200, make_load(12.0, image_share=0.4, tokens=120)) == []

    changes = house.run(200, make_load(12.0, image_share=0.4, tokens=400))

    assert [cells for _, _, cells in changes] == [Cells(1, 7)]


def test_a_change_is_not_worth_starts_that_take_longer_than_the_load_will_last():
    dear, cheap = (
        ScalingSnapshot(
            {"vl": make_load(30.0)},
            *[DeploymentCapacity({"vl": 30.0}, 8)] * 2,
            DeploymentCapacity({"vl": 36.0}, 8, starts),
        )
        for starts in (2000.0, 20.0)
    )
    clock = AdaptationClock()
    adapt = ScalingPolicy({"vl": ScalingGoal()}, RULES, START, clock)

    verdicts = [hold_verdict(adapt, clock, scene, 200) for scene in (dear, cheap)]

    assert verdicts == [Verdict.KEEP, Verdict.REPLAN]


def test_path_rates_alone_are_changed_when_they_give_the_gain():
    clock = AdaptationClock()
    adapt = ScalingPolicy({"vl": ScalingGoal()}, RULES, START, clock)
    scene = ScalingSnapshot(
        {"vl": make_load(20.0)},
        DeploymentCapacity({"vl": 20.0}, 8),
        DeploymentCapacity({"vl": 30.0}, 8),
        DeploymentCapacity({"vl": 31.0}, 8, 16.0),
    )

    assert hold_verdict(adapt, clock, scene, 20) is Verdict.KEEP
    assert hold_verdict(adapt, clock, scene, 20) is Verdict.REROUTE


def test_path_rates_wait_for_a_better_plan_that_has_almost_held():
    clock = AdaptationClock()
    adapt = ScalingPolicy({"vl": ScalingGoal()}, RULES, START, clock)
    loads = {"vl": make_load(20.0)}
    now, rerouted_capacity = DeploymentCapacity({"vl": 20.0}, 8), DeploymentCapacity({"vl": 30.0}, 8)

    hold_verdict(
        adapt, clock, ScalingSnapshot(loads, now, rerouted_capacity, DeploymentCapacity({"vl": 32.0}, 8, 16.0)), 25
    )
    verdict = hold_verdict(
        adapt, clock, ScalingSnapshot(loads, now, rerouted_capacity, DeploymentCapacity({"vl": 40.0}, 8, 16.0)), 18
    )

    assert verdict is Verdict.KEEP
    assert (
        hold_verdict(
            adapt, clock, ScalingSnapshot(loads, now, rerouted_capacity, DeploymentCapacity({"vl": 40.0}, 8, 16.0)), 5
        )
        is Verdict.REPLAN
    )


def test_a_model_that_is_not_asked_for_says_nothing_of_the_gain():
    goals = {"vl": ScalingGoal(), "idle": ScalingGoal()}
    clock = AdaptationClock()
    adapt = ScalingPolicy(goals, RULES, START, clock)
    now = DeploymentCapacity({"vl": 20.0, "idle": 0.0}, 8)
    best = DeploymentCapacity({"vl": 20.5, "idle": 99.0}, 8)

    verdict = hold_verdict(
        adapt, clock, ScalingSnapshot({"vl": make_load(20.0), "idle": make_load(0.0)}, now, now, best), 200
    )

    assert verdict is Verdict.KEEP


def test_what_serves_nothing_of_what_comes_is_replaced():
    clock = AdaptationClock()
    adapt = ScalingPolicy({"vl": ScalingGoal()}, RULES, START, clock)
    now = DeploymentCapacity({"vl": 0.0}, 8)

    verdict = hold_verdict(
        adapt, clock, ScalingSnapshot({"vl": make_load(20.0)}, now, now, DeploymentCapacity({"vl": 20.0}, 8, 64.0)), 40
    )

    assert verdict is Verdict.REPLAN


# Missing measurements


def test_few_requests_say_nothing():
    house = AdaptedDeployment()

    changes = house.run(1000, make_load(1.9, image_share=0.2))

    assert changes == []
    assert house.run(100, make_load(2.0, image_share=0.2)) != []


def test_no_request_at_all_keeps_the_plan():
    house = AdaptedDeployment()

    assert house.run(1000, make_load(0.0)) == []
    assert house.run(1000, None) == []


def test_the_first_window_says_nothing():
    house = plan_fewest()

    assert house.run(9, make_load(200.0)) == []
    assert house.run(1, make_load(200.0)) != []


def test_after_measurements_were_lost_nothing_is_decided_for_a_window():
    house = plan_fewest()
    house.run(100, make_load(20.0))

    house.adapt.reset_measurements()

    assert house.run(9, make_load(200.0)) == []
    assert house.run(1, make_load(200.0)) != []


def test_lost_measurements_do_not_look_like_a_rate_that_has_fallen():
    house = plan_fewest()
    house.run(100, make_load(20.0))

    house.run(20, make_load(0.0))
    house.adapt.reset_measurements()
    house.run(60, make_load(0.0))

    assert house.changes == []


def test_a_gateway_that_starts_again_changes_nothing():
    house, fixed_deployment = plan_fewest(), AdaptedDeployment()
    for each in (house, fixed_deployment):
        each.run(100, make_load(20.0, image_share=0.9))

    for rate in (20.0, 10.0, 0.0, 0.0, 4.0, 12.0, 20.0):
        for each in (house, fixed_deployment):
            each.run(2, make_load(rate, image_share=0.9))
    for each in (house, fixed_deployment):
        each.run(100, make_load(20.0, image_share=0.9))

    assert len(house.changes) <= 1  # images exceed the declaration, immediately and once
    assert fixed_deployment.changes == []
