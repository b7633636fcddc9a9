"""Plans of models in cells: the planner plans one pool of executors, then divides it."""

from collections.abc import Callable, Mapping

from omnibus.cells import has_cells, join_cells, merge_cells
from omnibus.plan import ModelPlan
from omnibus_planner.declared.shared_processes import APPS
from omnibus_planner.optimize.result import PlanningResult


def divide_into_cells(planned: PlanningResult, running: Mapping[str, ModelPlan]) -> dict[str, ModelPlan]:
    """Return the planned models, those in cells as separate cells.

    A model keeps its ``running`` cells if no new cells were planned for the same executors. The paths of a cell are its
    own, even if other paths would be best for all executors together.
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
    """Return the result of ``reroute`` for ``models``, without those in cells and apps.

    Paths through all executors of a model do not apply to its cells. Processes of apps have one plan, for all loads.
    """
    found = reroute({name: merge_cells(model) for name, model in models.items()})
    whole = {
        name: model
        for name, model in found.models.items()
        if name != APPS and not (name in models and has_cells(models[name]))
    }
    capacity = {name: rate for name, rate in found.capacity.items() if name in whole}
    return PlanningResult(whole, found.explain, capacity, found.rate)


def _has_same_replicas(celled: ModelPlan, model: ModelPlan) -> bool:
    pool = merge_cells(celled)
    return {name: option.replicas for name, option in pool.options.items()} == {
        name: option.replicas for name, option in model.options.items()
    }
