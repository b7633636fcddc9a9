"""Language models slower than their profile, detected at any load. Passes and steps reveal them."""

from collections.abc import Mapping

import pytest

from omnibus.plan_score import LearnedOption, LearnedSeconds
from omnibus.profile import ModelProfile
from omnibus_planner.optimize.learned_seconds import MAX_JOBS, applied_factors, profile_digest, update_learned
from omnibus_planner.optimize.promise import PromiseChecker
from omnibus_planner.simulate.saturate import RoleRate, saturated_rate
from tests.unit.planner.optimize import testbed
from tests.unit.planner.score import engines

SLOWER = 1.4
APART, TOGETHER = {"E": 2, "L": 1}, {"EL": 1}
LOW, SATURATED = 2.0, 16.0
#: Req/s: one or two sequences, half of the capacity, and more than the capacity.
LOADS = [
    pytest.param(LOW, id="low"),
    pytest.param(8.0, id="medium", marks=pytest.mark.nightly),
    pytest.param(SATURATED, id="saturated", marks=pytest.mark.nightly),
]


@pytest.fixture(scope="module")
def profile() -> ModelProfile:
    return engines.measured_profile()


@pytest.fixture(scope="module")
def checker(profile: ModelProfile) -> PromiseChecker:
    return PromiseChecker(testbed.make_planner(profile))


def learn_seconds(checker: PromiseChecker, replicas: Mapping[str, int], rate: float, slower: float) -> LearnedSeconds:
    """Return the calibration from one score with a ``slower`` thinker."""
    inputs, plan = checker.planner.inputs["q"], engines.make_plan(replicas)
    score = engines.score_load(plan, engines.make_devices(slower), checker, rate)
    return update_learned(None, inputs, profile_digest(inputs.profile), score, plan)


@pytest.mark.parametrize("rate", LOADS)
def test_a_slower_thinker_is_known_at_any_load(checker: PromiseChecker, rate: float):
    learned_options = learn_seconds(checker, APART, rate, SLOWER).options

    assert learned_options["L"].factor == pytest.approx(SLOWER, rel=0.1)


@pytest.mark.parametrize("rate", LOADS)
def test_a_thinker_that_is_as_profiled_teaches_nothing(checker: PromiseChecker, profile: ModelProfile, rate: float):
    calibration = learn_seconds(checker, APART, rate, 1.0)

    assert applied_factors(calibration, profile_digest(profile)) == {}


def test_an_encoder_beside_a_thinker_as_profiled_teaches_nothing(checker: PromiseChecker, profile: ModelProfile):
    calibration = learn_seconds(checker, TOGETHER, LOW, 1.0)

    assert applied_factors(calibration, profile_digest(profile)) == {}


def test_only_what_runs_nothing_but_a_language_model_is_judged_by_its_batches(checker: PromiseChecker):
    apart, together = (
        engines.score_load(engines.make_plan(replicas), engines.make_devices(), checker, LOW)
        for replicas in (APART, TOGETHER)
    )

    assert {each.option: each.seconds is not None for each in (*apart.options, *together.options)} == {
        "E": False,
        "L": True,
        "EL": False,
    }


def test_what_is_promised_with_what_was_learned_is_what_engines_serve(profile: ModelProfile):
    checker = PromiseChecker(testbed.make_planner(profile))
    taught = learn_seconds(checker, APART, SATURATED, SLOWER).options["L"]
    text = [RoleRate(frozenset({"thinker"}), 1.0, engines.TYPES[testbed.TEXT].quantities)]
    true_rate = saturated_rate(engines.make_devices(SLOWER), "L", text)
    before = saturated_rate(checker.devices["q"], "L", text)

    calibration = LearnedSeconds("p", {"L": LearnedOption(taught.factor, MAX_JOBS)})
    checker.apply_learned({"q": applied_factors(calibration, "p")})
    after = saturated_rate(checker.devices["q"], "L", text)

    assert before > 1.2 * true_rate
    assert after == pytest.approx(true_rate, rel=0.1)
