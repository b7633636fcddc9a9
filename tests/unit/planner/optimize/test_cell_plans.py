"""A model planned in cells: each cell serves whole requests alone, and the planner sees one pool."""

import msgspec
import pytest

from omnibus.cells import cell_shares, has_cells, merge_cells, path_cell
from omnibus_planner.declared.planned_spec import GpuType
from omnibus_planner.optimize.cell_plans import divide_into_cells, reroute_pools
from omnibus_planner.optimize.planner import Planner
from tests.unit.planner.optimize.testbed import count_replicas, make_planner

SEVEN = {"H100": GpuType(7, 80.0)}


@pytest.fixture
def cell_planner() -> Planner:
    return make_planner(gpus=SEVEN, cells=4)


def test_each_cell_has_the_executors_and_paths_of_its_size(cell_planner: Planner):
    result = cell_planner.plan()
    model_plan = divide_into_cells(result, {})["q"]

    sizes = {
        cell: sum(option.replicas * option.gpus for option in model_plan.options.values() if option.cell == cell)
        for cell in cell_shares(model_plan)
    }
    assert len(sizes) == len(result.cells["q"]) > 1
    assert sum(sizes.values()) <= 7
    assert all(size & (size - 1) == 0 for size in sizes.values())
    assert count_replicas(merge_cells(model_plan)) == count_replicas(result.models["q"])
    for kind, paths in model_plan.types.items():
        for path in paths:
            assert {model_plan.options[name].cell for name in path.options.values()} == {path_cell(model_plan, path)}
        rates = sum(path.rate for path in paths), sum(path.rate for path in result.models["q"].types[kind])
        assert rates[0] == pytest.approx(rates[1])


def test_what_runs_in_cells_goes_on_as_it_runs_where_paths_alone_are_others(cell_planner: Planner):
    first = cell_planner.plan()
    running = divide_into_cells(first, {})
    pools = {name: merge_cells(model) for name, model in running.items()}

    rerouted_result = cell_planner.reroute_running(pools)

    assert divide_into_cells(rerouted_result, running) == running
    assert not has_cells(divide_into_cells(rerouted_result, {})["q"])


def test_another_plan_takes_cells_of_its_own(cell_planner: Planner):
    running = divide_into_cells(cell_planner.plan(), {})
    fewer = make_planner(gpus={"H100": GpuType(4, 80.0)}, cells=4)

    cell_plans = divide_into_cells(
        fewer.plan(None, {name: merge_cells(model) for name, model in running.items()}), running
    )

    assert cell_plans != running
    assert has_cells(cell_plans["q"])


def test_paths_on_the_way_to_a_plan_in_cells_are_the_cells_own(cell_planner: Planner):
    running = divide_into_cells(cell_planner.plan(), {})

    result = reroute_pools(cell_planner.reroute_running, running)

    assert result.models == {}
    assert result.capacity == {}
    pool = {name: merge_cells(model) for name, model in running.items()}
    assert reroute_pools(cell_planner.reroute_running, pool).models.keys() == {"q"}


def test_a_plan_without_cells_is_left_as_it_is():
    result = make_planner().plan()

    assert divide_into_cells(result, {}) == result.models
    assert result.cells == {}
    assert msgspec.structs.replace(result, cells={}) == result
