"""Calibration from executors' measurements: a planner applies it at once, with the same plans as a new one."""

from pathlib import Path

import pytest

from omnibus.plan_score import LearnedOption, LearnedSeconds
from omnibus.profile import encode_profile
from omnibus.settings import StoreSettings
from omnibus.store import Store
from omnibus_planner.declared.declarations_file import Declarations
from omnibus_planner.optimize import simulated
from omnibus_planner.optimize.job import PlanningJob
from omnibus_planner.optimize.learned_seconds import profile_digest
from omnibus_planner.optimize.model_inputs import slower_option
from omnibus_planner.optimize.planner import Planner
from omnibus_planner.optimize.promise import PromiseChecker
from tests.unit.planner.optimize import testbed

FACTORS = {"L": LearnedOption(1.4, 900), "E": LearnedOption(0.8, 700)}
WITHIN = 1e-9  # seconds of CPU time: one round, however fast the machine is


def test_a_planner_that_learns_plans_as_one_that_is_built_with_the_factors_and_calibrates_nothing_again(
    monkeypatch: pytest.MonkeyPatch,
):
    checker = PromiseChecker(testbed.make_planner())
    first = checker.plan(within=WITHIN)
    learning_planner = testbed.make_planner()
    learning_planner.apply_learned({"q": FACTORS})
    fresh = PromiseChecker(learning_planner).plan(within=WITHIN)
    monkeypatch.setattr(simulated, "calibrate_devices", None)

    checker.apply_learned({"q": FACTORS})
    learned_result = checker.plan(within=WITHIN)
    checker.apply_learned({})
    again = checker.plan(within=WITHIN)

    assert (learned_result.models, learned_result.capacity) == (fresh.models, fresh.capacity)
    assert learned_result.models != first.models
    assert (again.models, again.capacity) == (first.models, first.capacity)
    assert learned_result.explain["planned"]["models"]["q"]["learned"]["L"] == {"factor": 1.4, "jobs": 900}


def test_factors_are_those_of_a_profile_with_other_seconds():
    """These are costs, capacities of running plans and admissible loads within goals: all inputs of the solver."""
    profile = testbed.make_profile()
    slower = testbed.make_profile({**profile.options, "L": slower_option(profile.options["L"], 1.5)})
    learning_planner: Planner = testbed.make_planner(profile)
    running = learning_planner.plan().models

    learning_planner.apply_learned({"q": {"L": LearnedOption(1.5, 900), "gone": LearnedOption(2.0, 900)}})

    honest = testbed.make_planner(slower)
    result, reference = learning_planner.plan(), honest.plan()
    assert result.models == reference.models
    assert result.capacity == pytest.approx(reference.capacity)
    assert learning_planner.capacity(running) == pytest.approx(honest.capacity(running))
    assert learning_planner.inputs["q"].options == honest.inputs["q"].options
    assert "gone" not in learning_planner.inputs["q"].learned


async def test_the_planner_of_a_job_learns_and_stays_the_same_object(valkey_url: str, tmp_path: Path):
    profile = testbed.make_profile({"E": testbed.E, "L": testbed.L})
    (tmp_path / "q.json").write_bytes(encode_profile(profile))
    store = Store(StoreSettings(url=valkey_url))
    job = PlanningJob(store, str(tmp_path / "models.json"), simulate=WITHIN)
    eager, stubborn = ({"q": testbed.make_model(profile="q.json", learn=learn).declared} for learn in (True, False))
    taught = {"q": LearnedSeconds(profile_digest(profile), {"L": LearnedOption(1.6, 4000)})}
    try:
        job.set_declarations(Declarations(eager, testbed.EIGHT), {})
        before, planner = await job.plan({}), job.planner

        has_changed = await job.learn(taught)
        changes_again = await job.learn(taught)
        after = await job.plan({})

        assert (has_changed, changes_again) == (True, False)
        assert planner is not None
        assert planner.inputs["q"].learned["L"].factor == pytest.approx(1.6, rel=0.1)
        assert after.capacity["q"] < 0.9 * before.capacity["q"]

        job.set_declarations(Declarations(stubborn, testbed.EIGHT), {})
        assert (await job.plan({})).capacity == pytest.approx(before.capacity)
        assert not await job.learn(taught)
    finally:
        await store.close()
