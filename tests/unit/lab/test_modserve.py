"""ModServe's figures 15 to 17 for a small cluster: loads within the goals, and GPUs that follow the load."""

import pytest

from tests.lab import modserve_day, modserve_model
from tests.lab.modserve_day import TraceHour, compare_day, hour_model, plan_hour
from tests.lab.modserve_load import (
    FACTOR,
    FIXED,
    MODSERVE,
    MONOLITH,
    PAPERS_MONOLITH,
    STAGED,
    build_baselines,
    compare_goals,
    compare_loads,
    plan_system,
)
from tests.lab.modserve_model import (
    BY_WORK,
    INTERNVL_26B,
    LLAMA,
    Judged,
    LoadedSystem,
    build_model,
    is_in_time,
    most_load,
    tail_goals,
)
from tests.lab.registry import EXPERIMENTS
from tests.lab.workloads import TrafficMix
from tests.lab.world import MODEL

QUIET, BURST = TraceHour(90.0, 30.0, 2.0), TraceHour(60.0, 60.0, 8.0)


@pytest.fixture(autouse=True)
def shorten_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Determine rates from few requests."""
    monkeypatch.setattr(modserve_model, "REQUESTS", 200)
    monkeypatch.setattr(modserve_model, "HORIZON_GOALS", 4)


def make_system(**replicas: int) -> LoadedSystem:
    return LoadedSystem(build_model(LLAMA).route(replicas).models[MODEL], BY_WORK)


def find_most(factor: float = FACTOR, **replicas: int) -> float:
    return most_load(LLAMA, make_system(**replicas), Judged(tail_goals(LLAMA, factor)), precision=0.25)


def test_the_most_load_is_in_time_and_more_is_not():
    system, judged = make_system(E=3, S=1), Judged(tail_goals(LLAMA, FACTOR))

    most = most_load(LLAMA, system, judged, precision=0.25)

    assert [is_in_time(LLAMA, system, TrafficMix(rate), judged) for rate in (most, 2 * most)] == [True, False]


def test_looser_goals_and_more_gpus_serve_more():
    one, loose, two = find_most(M=1), find_most(3 * FACTOR, M=1), find_most(M=2)

    assert 0 < one < min(loose, two)


def test_goals_that_nothing_meets_leave_no_load():
    assert find_most(0.5, M=1) == 0.0


def test_all_systems_but_the_papers_baseline_are_routed_alike():
    baselines = build_baselines(LLAMA, 32)

    assert list(baselines) == [PAPERS_MONOLITH, MONOLITH, STAGED, FIXED, MODSERVE]
    assert {name for name, system in baselines.items() if system.rules != BY_WORK} == {PAPERS_MONOLITH}
    assert baselines[PAPERS_MONOLITH].plan == baselines[MONOLITH].plan


def test_the_plan_for_goals_serves_no_less_than_a_monolith_under_the_same_goals():
    judged, precision = Judged(tail_goals(INTERNVL_26B, FACTOR)), 0.1

    planned, monolith = (
        most_load(INTERNVL_26B, system, judged, precision)
        for system in (plan_system(INTERNVL_26B, 16, FACTOR), build_baselines(INTERNVL_26B, 16)[MONOLITH])
    )

    assert planned >= (1 - precision) * monolith > 0


@pytest.mark.parametrize("system", [MONOLITH, MODSERVE])
def test_an_hour_gets_the_gpus_that_its_images_need(system: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(modserve_day, "day_scale", lambda served: 0.1)

    quiet, burst = (plan_hour(LLAMA, hour_model(LLAMA, hour), hour, system) for hour in (QUIET, BURST))

    assert quiet.met
    assert burst.met
    assert quiet.total < burst.total
    if system == MODSERVE:  # images alone grow: fewer texts come in the burst
        assert quiet.gpus["E"] < burst.gpus["E"]
        assert quiet.gpus["S"] >= burst.gpus["S"]


def test_figures_14_to_19_are_experiments():
    figures = {each.figures: each.run for each in EXPERIMENTS.values() if each.paper == "modserve"}

    assert list(figures) == [f"Fig. {number}" for number in range(14, 20)]
    assert (figures["Fig. 15"], figures["Fig. 16"], figures["Fig. 17"]) == (compare_loads, compare_day, compare_goals)
