"""Target of the planner. Data."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from omnibus.plan import ModelPlan, PriceList
from omnibus_planner.optimize.result import PlanningResult
from omnibus_planner.rollout.transition_plan import Models


class PlanTarget(NamedTuple):
    """Target plan of each model, its reason, and its explanation.

    ``gpus`` is the number of GPUs by type; types that it lacks are never short. ``route`` returns the best paths over
    the replicas of intermediate plans. It is called in a thread, and raises ``OmnibusError``. ``prices`` are written
    into every intermediate plan.
    """

    models: dict[str, ModelPlan]
    reason: str
    explain: dict[str, Any] = {}  # noqa: RUF012 never modified
    gpus: Mapping[str, int] = {}
    route: Callable[[Models], PlanningResult] | None = None
    prices: PriceList = PriceList()
