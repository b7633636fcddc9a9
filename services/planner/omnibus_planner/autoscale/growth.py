"""Growth of planned models: gateways let requests wait for it, rather than reject them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from omnibus.bus.messages import ModelGrowth
from omnibus.plan import Plan
from omnibus_planner.declared.model import Model
from omnibus_planner.declared.planned_spec import GPUS

if TYPE_CHECKING:  # see ``omnibus_planner.optimize``
    from omnibus_planner.optimize.planner import Planner

#: Seconds until the planner requests executors: those of the measured load, and of planning.
REACTION_SECONDS = 7.0


def plan_growth(plan: Plan, planner: "Planner", gpus: Mapping[str, int]) -> dict[str, ModelGrowth]:
    """Return the growth of models in ``plan`` that follow their rate.

    ``gpus`` are by type; models that cannot grow are absent. The growth assumes that all other GPUs belong to the
    model, and serve as much.
    """
    growths = {}
    for name, model in planner.models.items():
        model_plan = plan.models.get(name)
        if model_plan is None or not _follows_rate(model):
            continue
        own_options = {option: each for option, each in model_plan.options.items() if each.replicas and not each.of}
        used_gpus = sum(each.replicas * max(1, each.gpus) for each in own_options.values())
        factor = (
            sum(gpus.get(gpu, 0) for gpu in {each.gpu for each in own_options.values()}) / used_gpus
            if used_gpus
            else 0.0
        )
        if factor > 1:
            starts = max(planner.start_seconds.get((name, option), 0.0) for option in own_options)
            growths[name] = ModelGrowth(factor, REACTION_SECONDS + starts)
    return growths


def _follows_rate(model: Model) -> bool:
    planned_model = model.planned
    return planned_model is not None and planned_model.goal == GPUS and planned_model.adapt and not planned_model.cells
