"""Plans in cells: each cell is simulated, promised and scored alone, and all calibrate their options."""

import msgspec
import pytest

from omnibus.cells import join_cells
from omnibus.plan import Plan
from omnibus.profile import ModelProfile
from omnibus_planner.declared.planned_spec import GpuType
from omnibus_planner.optimize.learned_seconds import applied_factors, profile_digest, update_learned
from omnibus_planner.optimize.promise import PromiseChecker
from omnibus_planner.simulate.arrivals import TypeRate, even_arrivals
from omnibus_planner.simulate.cluster import SimulatedModel
from omnibus_planner.simulate.run import PlanSimulation, SimulatedPlan
from tests.unit.planner.optimize import testbed
from tests.unit.planner.optimize.testbed import SEEN, TEXT
from tests.unit.planner.score import engines

SLOWER, RATE = 1.4, 8.0


@pytest.fixture(scope="module")
def profile() -> ModelProfile:
    return engines.measured_profile()


@pytest.fixture(scope="module")
def checker(profile: ModelProfile) -> PromiseChecker:
    return PromiseChecker(testbed.make_planner(profile))


@pytest.fixture(scope="module")
def cell_plan() -> Plan:
    """Two cells. One is twice as large and gets two of three requests."""
    large, small = (engines.make_plan({"E": 2 * size, "L": size}).models["q"] for size in (2, 1))
    types = {
        kind: tuple(msgspec.structs.replace(path, rate=2.0) for path in paths) for kind, paths in large.types.items()
    }
    return Plan(1, 0, 0.0, {"q": join_cells([msgspec.structs.replace(large, types=types), small])})


def test_each_cell_has_a_score_and_honest_engines_have_no_error_to_speak_of(checker: PromiseChecker, cell_plan: Plan):
    score = engines.score_load(cell_plan, engines.make_devices(), checker, RATE)

    busy = {each.option: each.busy for each in score.options}
    assert busy.keys() == {"E@c1", "L@c1", "E@c2", "L@c2"}
    assert all(abs(each.error) < 0.1 for each in busy.values())
    assert busy["E@c1"].promised == pytest.approx(busy["E@c2"].promised, rel=0.2)  # as much work for each executor
    assert {each.kind for each in score.types} == {SEEN, TEXT}
    assert all(abs(each.rate.error) < 0.05 for each in score.types)


def test_what_executors_of_all_cells_take_is_learned_of_their_option(
    checker: PromiseChecker, profile: ModelProfile, cell_plan: Plan
):
    score = engines.score_load(cell_plan, engines.make_devices(SLOWER), checker, RATE)

    digest = profile_digest(profile)
    calibration = update_learned(None, checker.planner.inputs["q"], digest, score, cell_plan)

    assert calibration.options["L"].factor == pytest.approx(SLOWER, rel=0.1)
    assert set(applied_factors(calibration, digest)) == {"L"}


def test_a_request_stays_in_the_cell_with_the_least_work_for_its_share(cell_plan: Plan):
    rates = [TypeRate("q", kind, 0.5 * RATE, about.quantities) for kind, about in engines.TYPES.items()]
    run = PlanSimulation(
        SimulatedPlan({"q": SimulatedModel(cell_plan.models["q"], engines.make_devices())}), 30.0, 0.0, 1
    )

    run.send_requests(even_arrivals(rates, 30.0))

    for (_, _, name), flow in run.seen.flows.items():
        assert {option.rpartition("@")[2] for option in flow.path.options.values()} == {name.rpartition("@")[2]}
    came = {
        cell: sum(flow.came for (_, _, name), flow in run.seen.flows.items() if name.endswith(cell))
        for cell in ("c1", "c2")
    }
    assert 1.5 < came["c1"] / came["c2"] < 3.0


def test_what_a_plan_in_cells_promises_is_what_its_cells_serve(profile: ModelProfile):
    checker = PromiseChecker(testbed.make_planner(profile, {"H100": GpuType(7, 80.0)}, cells=4))

    result = checker.plan(within=1e-9)

    assert len(result.cells["q"]) > 1
    outcome = checker.simulate(result).outcome
    cells = {each.option.rpartition("@")[2] for each in outcome.options}
    assert cells == {f"c{number + 1}" for number in range(len(result.cells["q"]))}
    assert outcome.carried >= 0.9
