"""Plans are simulated before they are promised: independent simulated engines serve the promise."""

import msgspec
import pytest

from omnibus.profile import ModelProfile
from omnibus_planner.optimize import ModelLoad
from omnibus_planner.optimize.corrections import UNMEASURED_FACTOR, CostCorrections
from omnibus_planner.optimize.planner import Planner
from omnibus_planner.optimize.promise import MAX_ROUNDS, PromiseChecker
from omnibus_planner.optimize.result import PlanningResult
from omnibus_planner.simulate.arrivals import TypeRate, even_arrivals
from omnibus_planner.simulate.cluster import SimulatedModel
from omnibus_planner.simulate.run import SimulatedPlan, simulate_plan
from tests.nightly import mark_nightly
from tests.unit.planner.optimize import testbed
from tests.unit.planner.simulate.omni import TYPES, make_omni_planner, measured_profile, true_devices

#: Shares of the request types; None for the profile's.
MIXES = {
    "declared": None,
    "speech-heavy": (0.15, 0.45, 0.1, 0.3),
    "image-heavy": (0.8, 0.05, 0.1, 0.05),
    "text-only": (0.0, 0.0, 1.0, 0.0),
}


@pytest.fixture(scope="module")
def profile() -> ModelProfile:
    return measured_profile()


@pytest.fixture(scope="module")
def declared_result(profile: ModelProfile) -> PlanningResult:
    """The plan for the profile's shares, in as many rounds as needed."""
    return PromiseChecker(make_omni_planner(profile)).plan(within=60.0)


def mix_load(mix: tuple[float, ...] | None) -> dict[str, ModelLoad] | None:
    return None if mix is None else {"omni": ModelLoad(1.0, dict(zip(TYPES, mix, strict=True)))}


@pytest.mark.parametrize("mix", ["declared", "speech-heavy", *mark_nightly("image-heavy", "text-only")])
def test_what_engines_serve_is_within_a_tenth_of_the_promise(
    profile: ModelProfile, declared_result: PlanningResult, mix: str
):
    load = mix_load(MIXES[mix])
    result = declared_result if load is None else PromiseChecker(make_omni_planner(profile)).plan(load, within=60.0)

    shares = MIXES[mix] or [about.share for about in TYPES.values()]
    promised_rate = result.capacity["omni"]
    rates = [
        TypeRate("omni", kind, share * promised_rate, about.quantities)
        for (kind, about), share in zip(TYPES.items(), shares, strict=True)
        if share
    ]
    simulated_model = SimulatedModel(result.models["omni"], true_devices())
    outcome = simulate_plan(SimulatedPlan({"omni": simulated_model}), even_arrivals(rates, 90.0), 90.0)
    measured_rate = outcome.breaks.rate if outcome.breaks else 0.0
    assert 0.9 <= measured_rate / outcome.rate <= 1.1
    assert outcome.carried >= 0.9


def test_the_explanation_has_what_the_solver_promised_what_was_simulated_and_the_rounds(
    declared_result: PlanningResult,
):
    result = declared_result

    explanation = result.explain["planned"]["models"]["omni"]
    promise = explanation["promise"]
    assert 1 <= promise["rounds"] <= MAX_ROUNDS
    assert promise["agrees"] == (abs(promise["simulated"] / promise["solver"] - 1) <= 0.05)
    assert explanation["capacity"] == result.capacity["omni"] == promise["solver" if promise["agrees"] else "simulated"]
    assert result.explain["planned"]["deployments"][0]["alternatives"]


def test_without_time_for_a_second_round_the_simulated_figure_is_promised(profile: ModelProfile):
    load = mix_load(MIXES["image-heavy"])
    plain = make_omni_planner(profile).plan(load)

    result = PromiseChecker(make_omni_planner(profile)).plan(load, within=0.0)

    promise = result.explain["planned"]["models"]["omni"]["promise"]
    assert promise["rounds"] == 1
    assert not promise["agrees"]
    assert result.capacity["omni"] == promise["simulated"] < 0.95 * plain.capacity["omni"]


def test_what_cannot_be_simulated_is_promised_as_it_was_solved_and_says_why():
    kinds = {name: msgspec.structs.replace(kind, components=("vision",)) for name, kind in testbed.MIXED.items()}
    model_planner = testbed.make_planner()
    checker = PromiseChecker(model_planner)
    inputs = model_planner.inputs["q"]
    inputs.profile = msgspec.structs.replace(inputs.profile, types=kinds)  # no request uses the thinker

    result = checker.plan(within=1.0)

    assert "cannot be simulated" in result.explain["planned"]["models"]["q"]["promise"]["fault"]
    assert result.capacity == model_planner.plan().capacity


def test_a_profile_of_exact_times_is_promised_as_it_was_solved():
    checker = PromiseChecker(testbed.make_planner())

    result = checker.plan(within=60.0)

    assert result.explain["planned"]["models"]["q"]["promise"]["agrees"]
    assert result.capacity["q"] == pytest.approx(testbed.make_planner().plan().capacity["q"], rel=0.06)


def test_roles_that_nobody_measured_cost_more_and_measured_ones_do_not():
    corrections = CostCorrections(
        {"E": ("vision",), "EL": ("vision", "thinker")}, {("", "EL", frozenset(("thinker",)))}
    )
    whole = frozenset(("vision", "thinker"))

    corrections.penalise_unmeasured()

    assert corrections.factor("a", "EL", whole) == UNMEASURED_FACTOR
    assert corrections.factor("a", "EL", ("thinker",)) == corrections.factor("a", "E", ("vision",)) == 1.0


def test_an_option_whose_components_lose_by_taking_turns_is_slower_in_all_its_roles():
    parts = ("vision", "thinker")
    corrections = CostCorrections({"EL": parts}, {("a", "EL", frozenset(parts)), ("b", "EL", frozenset(parts))})
    corrections.penalise_unmeasured()
    version = corrections.version

    corrections.correct_roles("EL", [("a", frozenset(parts))], 1.5)

    assert corrections.factor("a", "EL", parts) == corrections.factor("b", "EL", parts) == 1.5
    assert corrections.factor("a", "EL", ("thinker",)) == pytest.approx(1.5 * UNMEASURED_FACTOR)
    assert corrections.version > version


def test_a_role_that_is_cheaper_than_its_sum_is_so_by_itself():
    parts = ("vision", "thinker")
    corrections = CostCorrections({"EL": parts}, {("a", "EL", frozenset(parts)), ("b", "EL", frozenset(parts))})

    corrections.correct_roles("EL", [("a", frozenset(parts))], 0.8)

    assert corrections.factor("a", "EL", parts) == 0.8
    assert corrections.factor("b", "EL", parts) == 1.0


def test_a_simulated_gain_is_that_of_the_plan_over_what_runs(profile: ModelProfile):
    load = mix_load(MIXES["speech-heavy"])
    assert load is not None
    model_planner: Planner = make_omni_planner(profile)
    checker = PromiseChecker(model_planner)
    running = checker.plan(within=60.0)
    rerouted_result = model_planner.reroute_running(running.models, load)

    gain, error = checker.estimate_gain(rerouted_result, checker.plan(load, running.models, within=60.0), load)
    none, _ = checker.estimate_gain(rerouted_result, rerouted_result, load)

    assert gain > error
    assert none == pytest.approx(0.0)


def test_no_rule_of_others_serves_more_in_the_same_simulation_even_without_time_for_a_second_round(
    profile: ModelProfile,
):
    load = mix_load(MIXES["image-heavy"])
    checker = PromiseChecker(make_omni_planner(profile))
    baselines = checker.planner.plan_baselines(load)

    result = checker.plan(load, within=1e-9)

    assert {"monolith", "modserve", "greedy_cells"} <= baselines.keys()
    for policy, each in baselines.items():
        served_rate = each.capacity["omni"] * min(1.0, checker.simulate(each, load).served)
        assert result.explain["planned"]["models"]["omni"]["promise"]["simulated"] >= served_rate, policy
