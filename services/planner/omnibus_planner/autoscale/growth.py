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
    found = {}
    for name, model in planner.models.items():
        deployed = plan.models.get(name)
        if deployed is None or not _follows_rate(model):
            continue
        mine = {option: each for option, each in deployed.options.items() if each.replicas and not each.of}
        used = sum(each.replicas * max(1, each.gpus) for each in mine.values())
        factor = sum(gpus.get(gpu, 0) for gpu in {each.gpu for each in mine.values()}) / used if used else 0.0
        if factor > 1:
            starts = max(planner.start_seconds.get((name, option), 0.0) for option in mine)
            found[name] = ModelGrowth(factor, REACTION_SECONDS + starts)
    return found


def _follows_rate(model: Model) -> bool:
    asked = model.planned
    return asked is not None and asked.goal == GPUS and asked.adapt and not asked.cells
