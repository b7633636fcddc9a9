"""ModServe's figures 15 to 17 for a small cluster: loads within the goals, and GPUs that follow the load."""

import pytest

from omnibus_planner.lab import modserve_day, modserve_load
from omnibus_planner.lab.modserve import LLAMA, build_model, run_system
from omnibus_planner.lab.modserve_day import TraceHour, compare_day, hour_model, plan_hour
from omnibus_planner.lab.modserve_load import (
    BY_WORK,
    FACTOR,
    IN_TURN,
    MODSERVE,
    MONOLITH,
    LoadedSystem,
    compare_goals,
    compare_loads,
    meets_tail_goals,
    most_load,
)
from omnibus_planner.lab.registry import EXPERIMENTS
from omnibus_planner.lab.workloads import TrafficMix
from omnibus_planner.lab.world import MODEL

REQUESTS = 200
QUIET, BURST = TraceHour(90.0, 30.0, 2.0), TraceHour(60.0, 60.0, 8.0)


@pytest.fixture(autouse=True)
def coarsen_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Determine rates roughly, from few requests."""
    monkeypatch.setattr(modserve_load, "_REQUESTS", REQUESTS)
    monkeypatch.setattr(modserve_load, "_PRECISION", 0.25)
    monkeypatch.setattr(modserve_day, "_REQUESTS", REQUESTS)


def make_system(**replicas: int) -> LoadedSystem:
    rules = IN_TURN if "M" in replicas else BY_WORK
    return LoadedSystem(build_model(LLAMA).route(replicas).models[MODEL], rules)


def test_the_most_load_is_in_time_and_more_is_not():
    system = make_system(E=3, S=1)

    most = most_load(LLAMA, system, FACTOR)

    runs = [run_system(LLAMA, system.plan, system.rules, TrafficMix(rate), 8.0) for rate in (most, 2 * most)]
    assert [meets_tail_goals(LLAMA, run, FACTOR) for run in runs] == [True, False]


def test_looser_goals_and_more_gpus_serve_more():
    one, loose, two = (
        most_load(LLAMA, make_system(M=count), factor) for count, factor in ((1, FACTOR), (1, 3 * FACTOR), (2, FACTOR))
    )

    assert 0 < one < min(loose, two)


def test_goals_that_nothing_meets_leave_no_load():
    assert most_load(LLAMA, make_system(M=1), 0.5) == 0.0


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
