"""Whether a plan keeps its goals, and up to which rate."""

from collections.abc import Sequence

import pytest

from omnibus.plan_goals import ModelGoals
from omnibus_planner.simulate import in_time
from omnibus_planner.simulate.arrivals import Arrival, TypeRate, even_arrivals
from omnibus_planner.simulate.cluster import AdmissionLimits
from omnibus_planner.simulate.in_time import highest_rate, keeps_goals
from omnibus_planner.simulate.run import PlanSimulation
from tests.unit.planner.simulate.world import IMAGE, SEEN, STEP, STEPS, TEXT, make_chain, simulate_model

SECONDS, ANSWER = 200.0, STEP * STEPS


def arrive(image_rate: float, text_rate: float) -> list[Arrival]:
    rates = [TypeRate("vl", SEEN, image_rate), TypeRate("vl", TEXT, text_rate)]
    return list(even_arrivals([each for each in rates if each.rate], SECONDS))


def keeps(goals: ModelGoals, arrivals: Sequence[Arrival], share: float = 0.99, **limits: int) -> bool:
    plan = simulate_model(make_chain())._replace(goals={"vl": goals}, limits=AdmissionLimits(**limits))
    return keeps_goals(plan, arrivals, SECONDS, warm_up=0.1, share=share)


def test_a_goal_is_kept_if_enough_requests_meet_it():
    arrivals = arrive(0.05, 0.05)

    assert keeps(ModelGoals({"done": IMAGE + ANSWER + 0.1}), arrivals)
    assert not keeps(ModelGoals({"done": ANSWER + 0.1}), arrivals)  # half of them have an image
    assert keeps(ModelGoals({"done": ANSWER + 0.1}), arrivals, share=0.4)


def test_each_type_must_meet_the_goals_of_types():
    arrivals = arrive(0.01, 0.19)
    missed_by_images = ModelGoals({}, {"vision": {"done": IMAGE}})

    assert not keeps(missed_by_images, arrivals, share=0.9)
    assert keeps(ModelGoals({"done": ANSWER + 0.1}), arrivals, share=0.9)  # nine in ten are texts
    assert keeps(ModelGoals({"done": ANSWER + 0.1}, {"vision": {"done": IMAGE + ANSWER + 0.1}}), arrivals)


def test_rejected_requests_miss_their_goals():
    arrivals = [Arrival(50.0, "vl", TEXT, {}) for _ in range(8)]

    assert keeps(ModelGoals({"done": 1000.0}), arrivals)
    assert not keeps(ModelGoals({"done": 1000.0}), arrivals, credits=1)


def test_a_simulation_ends_when_too_many_have_missed(monkeypatch: pytest.MonkeyPatch):
    runs = list[PlanSimulation]()

    class KeptSimulation(PlanSimulation):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            runs.append(self)

    monkeypatch.setattr(in_time, "PlanSimulation", KeptSimulation)
    arrivals = arrive(0.0, 2.0)

    assert not keeps(ModelGoals({"done": ANSWER / 2}), arrivals)
    assert keeps(ModelGoals({"done": 1000.0}), arrivals)
    assert runs[0].seen.requests < len(arrivals) == runs[1].seen.requests


@pytest.mark.parametrize("guess", [0.5, 7.0, 100.0])
@pytest.mark.parametrize("limit", [3.0, 40.0])
def test_the_highest_rate_is_found_from_any_guess(guess: float, limit: float):
    rate = highest_rate(lambda rate: rate <= limit, guess, 0.02, 0.1)

    assert limit * 0.97 <= rate <= limit


def test_a_rate_below_the_least_is_none():
    assert highest_rate(lambda rate: False, 8.0, 0.05, 0.1) == 0.0
