"""Plans of models in cells: the planner plans one pool of executors, gateways and executors get each cell by itself."""

from collections.abc import Callable, Mapping

from omnibus.cells import has_cells, join_cells, merge_cells
from omnibus.plan import ModelPlan
from services.planner.optimize.result import PlanningResult


def divide_into_cells(planned: PlanningResult, running: Mapping[str, ModelPlan]) -> dict[str, ModelPlan]:
    """The planned models, those in cells with each cell by itself.

    Where no new cells were planned for the executors that are ``running``, they are as they run: a cell's paths are its
    own, whatever is best for all executors together.
    """
    found = dict(planned.models)
    for name, model in planned.models.items():
        cells, before = planned.cells.get(name), running.get(name)
        if cells and _has_same_replicas(joined := join_cells(cells), model):
            found[name] = joined
        elif before is not None and has_cells(before) and _has_same_replicas(before, model):
            found[name] = before
    return found


def reroute_pools(
    reroute: Callable[[Mapping[str, ModelPlan]], PlanningResult], models: Mapping[str, ModelPlan]
) -> PlanningResult:
    """Result of ``reroute`` for ``models`` without those in cells: paths through all of their executors are none of
    theirs."""
    found = reroute({name: merge_cells(model) for name, model in models.items()})
    whole = {name: model for name, model in found.models.items() if name not in models or not has_cells(models[name])}
    capacity = {name: rate for name, rate in found.capacity.items() if name in whole}
    return PlanningResult(whole, found.explain, capacity, found.rate)


def _has_same_replicas(celled: ModelPlan, model: ModelPlan) -> bool:
    pool = merge_cells(celled)
    return {name: option.replicas for name, option in pool.options.items()} == {
        name: option.replicas for name, option in model.options.items()
    }
