"""A model planned in cells: each cell serves whole requests alone, and the planner sees one pool."""

import msgspec
import pytest

from omnibus.cells import cell_shares, has_cells, merge_cells, path_cell
from omnibus_planner.declared.planned_spec import GpuType
from omnibus_planner.optimize.cell_plans import divide_into_cells, reroute_pools
from omnibus_planner.optimize.planner import Planner
from tests.unit.planner.optimize.testbed import planner, replicas

SEVEN = {"H100": GpuType(7, 80.0)}


@pytest.fixture
def celled() -> Planner:
    return planner(gpus=SEVEN, cells=4)


def test_each_cell_has_the_executors_and_paths_of_its_size(celled: Planner):
    found = celled.plan()
    made = divide_into_cells(found, {})["q"]

    sizes = {
        cell: sum(option.replicas * option.gpus for option in made.options.values() if option.cell == cell)
        for cell in cell_shares(made)
    }
    assert len(sizes) == len(found.cells["q"]) > 1
    assert sum(sizes.values()) <= 7
    assert all(size & (size - 1) == 0 for size in sizes.values())
    assert replicas(merge_cells(made)) == replicas(found.models["q"])
    for kind, paths in made.types.items():
        for path in paths:
            assert {made.options[name].cell for name in path.options.values()} == {path_cell(made, path)}
        rates = sum(path.rate for path in paths), sum(path.rate for path in found.models["q"].types[kind])
        assert rates[0] == pytest.approx(rates[1])


def test_what_runs_in_cells_goes_on_as_it_runs_where_paths_alone_are_others(celled: Planner):
    first = celled.plan()
    running = divide_into_cells(first, {})
    pools = {name: merge_cells(model) for name, model in running.items()}

    rerouted = celled.reroute_running(pools)

    assert divide_into_cells(rerouted, running) == running
    assert not has_cells(divide_into_cells(rerouted, {})["q"])


def test_another_plan_takes_cells_of_its_own(celled: Planner):
    running = divide_into_cells(celled.plan(), {})
    fewer = planner(gpus={"H100": GpuType(4, 80.0)}, cells=4)

    made = divide_into_cells(fewer.plan(None, {name: merge_cells(model) for name, model in running.items()}), running)

    assert made != running
    assert has_cells(made["q"])


def test_paths_on_the_way_to_a_plan_in_cells_are_the_cells_own(celled: Planner):
    running = divide_into_cells(celled.plan(), {})

    found = reroute_pools(celled.reroute_running, running)

    assert found.models == {}
    assert found.capacity == {}
    pool = {name: merge_cells(model) for name, model in running.items()}
    assert reroute_pools(celled.reroute_running, pool).models.keys() == {"q"}


def test_a_plan_without_cells_is_left_as_it_is():
    found = planner().plan()

    assert divide_into_cells(found, {}) == found.models
    assert found.cells == {}
    assert msgspec.structs.replace(found, cells={}) == found
