"""Scores: the promise for the requests received, the measurements, and the calibration for the next plan."""

from typing import NamedTuple

import msgspec
import pytest

from omnibus.bus.messages import ExecutorStatus, LoadCounts, LoadEvent
from omnibus.cluster.latency_histogram import bucket_number
from omnibus.plan import Plan
from omnibus.plan_score import LearnedOption, LearnedSeconds, PlanScore
from omnibus.profile import ModelProfile, OptionProfile
from omnibus_planner.optimize.learned_seconds import (
    MAX_FACTOR,
    MIN_JOBS,
    applied_factors,
    factors_differ,
    profile_digest,
    update_learned,
)
from omnibus_planner.optimize.model_inputs import ModelInputs, slower_option
from omnibus_planner.optimize.promise import PromiseChecker
from omnibus_planner.score.replay import replay_requests
from omnibus_planner.score.scoring import PlanMeasurement, Reports, score_plan
from tests.unit.planner.optimize import testbed
from tests.unit.planner.optimize.testbed import SEEN, TEXT

SECONDS = 100
RATES = {SEEN: 3, TEXT: 2}  # requests each second
SLOWER = 1.5


def slow_profile(profile: ModelProfile, option: str, factor: float) -> ModelProfile:
    options = {**profile.options, option: slower_option(profile.options[option], factor)}
    return msgspec.structs.replace(profile, options=options)


def make_inputs(profile: ModelProfile) -> ModelInputs:
    return testbed.make_planner(profile).inputs["q"]


class ScoredWorld(NamedTuple):
    """A plan by ``profile``, and its executors, which behave like ``truth``."""

    profile: ModelProfile
    truth: ModelProfile
    plan: Plan

    @classmethod
    def of(cls, profile: ModelProfile, truth: ModelProfile) -> "ScoredWorld":
        result = testbed.make_planner(profile).plan()
        return cls(profile, truth, Plan(3, 0, 0.0, result.models, explain=result.explain))

    def score(self, checker: PromiseChecker | None = None, load: float = 1.0) -> PlanScore:
        """Score ``SECONDS`` of requests that the true executors serve. Without ``checker`` only the profile is used."""
        measurement = PlanMeasurement(self.plan, 0.0, self._make_reports(0.0, {}))
        for second in range(SECONDS):
            counts = {kind: LoadCounts(came=round(rate * load)) for kind, rate in RATES.items()}
            measurement.add_event(LoadEvent("g", 3, 1.0, 0, {"q": counts}), second + 1.0)
        truth = replay_requests(
            PromiseChecker(testbed.make_planner(self.truth)), self.plan, measurement.arrivals({"q": 1}), SECONDS
        )
        for each in truth.types:
            done_count = round(each.throughput * SECONDS)
            tail = done_count // 50
            figures = {
                "done": {bucket_number(each.median["done"]): done_count - tail, bucket_number(each.p99["done"]): tail}
            }
            event = LoadEvent("g", 3, 0.0, 0, {"q": {each.kind: LoadCounts(done=done_count, figures=figures)}})
            measurement.add_event(event, SECONDS)
        usage = measurement.option_usage(
            self._make_reports(SECONDS, {each.option: each.busy for each in truth.options}), SECONDS
        )
        checker = checker or PromiseChecker(testbed.make_planner(self.profile))
        outcome = replay_requests(checker, self.plan, measurement.arrivals({"q": 1}), SECONDS)
        return score_plan(measurement, outcome, usage, SECONDS, 1.0, {"q"}, checker.devices)

    def _make_reports(self, at: float, busy: dict[str, float]) -> Reports:
        model = self.plan.models["q"]
        return {
            f"{name}{number}": (
                ExecutorStatus(
                    f"{name}{number}", "q", name, option.components, (), "n", "ready", 8,
                    origin=model.option_origin(name),
                    busy=(busy.get(name, 0.0) * at, *[0.0] * (len(option.components) - 1)),
                    done=(round(20 * at), *[0] * (len(option.components) - 1)),
                ),
                at,
            )
            for name, option in model.options.items()
            for number in range(option.replicas)
        }  # fmt: skip


@pytest.fixture(scope="module")
def world() -> ScoredWorld:
    profile = testbed.make_profile()
    return ScoredWorld.of(profile, slow_profile(profile, "E", SLOWER))


def test_an_honest_profile_has_no_error_to_speak_of_and_teaches_nothing():
    profile = testbed.make_profile()
    honest = ScoredWorld.of(profile, profile)
    plan_score = honest.score()

    assert plan_score.epoch == 3
    assert {each.kind for each in plan_score.types} == {SEEN, TEXT}
    for each in plan_score.types:
        assert abs(each.rate.error) < 0.02
        assert abs(each.p50["done"].error) < 0.05
        assert abs(each.p99["done"].error) < 0.05
    calibration = update_learned(None, make_inputs(profile), profile_digest(profile), plan_score, honest.plan)
    assert applied_factors(calibration, profile_digest(profile)) == {}


def test_executors_that_take_longer_are_seen_and_the_next_prediction_is_better(world: ScoredWorld):
    digest = profile_digest(world.profile)
    plan_score = world.score()
    image_score = next(each for each in plan_score.types if each.kind == SEEN)
    assert image_score.p50["done"].error > 0.05
    calibration: LearnedSeconds | None = None
    checker = PromiseChecker(testbed.make_planner(world.profile))
    before = checker.planner.plan().capacity["q"]
    for _ in range(2):
        own = checker.planner.inputs["q"]
        calibration = update_learned(calibration, own, digest, world.score(checker), world.plan)
        checker.apply_learned({"q": applied_factors(calibration, digest)})

    assert set(own.learned) == {"E"}
    assert own.learned["E"].factor == pytest.approx(SLOWER, rel=0.12)
    again = next(each for each in world.score(checker).types if each.kind == SEEN)
    assert abs(again.p50["done"].error) < abs(image_score.p50["done"].error) / 2
    true_rate = testbed.make_planner(world.truth).plan().capacity["q"]
    assert abs(checker.planner.plan().capacity["q"] / true_rate - 1) < abs(before / true_rate - 1)


def test_latencies_of_executors_at_their_limit_are_not_compared(world: ScoredWorld):
    plan_score = world.score(load=4.0)
    assert plan_score.load > 0.9
    assert not any(each.p50 or each.p99 for each in plan_score.types)
    assert all(each.rate.promised > 0 for each in plan_score.types)


def test_few_jobs_and_profiles_without_latencies_teach_nothing(world: ScoredWorld):
    digest, plan_score = profile_digest(world.profile), world.score()
    few = msgspec.structs.replace(
        plan_score, options=tuple(msgspec.structs.replace(each, jobs=MIN_JOBS - 1) for each in plan_score.options)
    )
    assert update_learned(None, make_inputs(world.profile), digest, few, world.plan).options == {}
    blind = msgspec.structs.replace(
        world.profile, options={name: without_latency(each) for name, each in world.profile.options.items()}
    )
    assert update_learned(None, make_inputs(blind), digest, plan_score, world.plan).options == {}


def without_latency(option: OptionProfile) -> OptionProfile:
    work = tuple(msgspec.structs.replace(each, latency=0.0) for each in option.work)
    return msgspec.structs.replace(option, work=work)


def test_factors_count_by_their_jobs_within_bounds_and_for_their_profile_alone():
    calibration = LearnedSeconds("ab", {name: LearnedOption(factor, jobs) for name, factor, jobs in [
        ("E", 1.5, 500), ("L", 40.0, 5000), ("EL", 1.04, 5000),
    ]})  # fmt: skip
    factors = applied_factors(calibration, "ab")
    assert {name: each.factor for name, each in factors.items()} == {"E": pytest.approx(1.5**0.5), "L": MAX_FACTOR}
    assert applied_factors(calibration, "cd") == applied_factors(None, "ab") == {}
    assert factors_differ(factors, {})
    assert factors_differ({}, factors)
    assert not factors_differ(factors, dict(factors))


def test_what_was_counted_under_another_plan_and_executors_that_came_later_are_left_out(world: ScoredWorld):
    measurement = PlanMeasurement(world.plan, 0.0, {})
    measurement.add_event(LoadEvent("g", 2, 1.0, 0, {"q": {TEXT: LoadCounts(came=5, done=5)}}), 1.0)
    assert measurement.requests == 0
    assert measurement.option_usage(world._make_reports(SECONDS, {"E": 0.5, "L": 0.5}), SECONDS) == {}
