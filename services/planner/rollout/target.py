"""Target of the planner. Data."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from omnibus.plan import ModelPlan, PriceList
from services.planner.optimize.result import PlanningResult
from services.planner.rollout.transition_plan import Models


class PlanTarget(NamedTuple):
    """Wanted plan of each model, the reason for it, and what its maker knows of it.

    ``gpus`` is the number of GPUs by type; types that it does not name are never short. ``route`` gives the best
    paths over the replicas of plans on the way there; it is called in a thread, and raises ``OmnibusError``. ``prices``
    are written into every plan on the way.
    """

    models: dict[str, ModelPlan]
    reason: str
    explain: dict[str, Any] = {}  # noqa: RUF012 nobody writes to it
    gpus: Mapping[str, int] = {}
    route: Callable[[Models], PlanningResult] | None = None
    prices: PriceList = PriceList()
