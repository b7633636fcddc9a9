"""Result of planning. Data."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from omnibus.plan import ModelPlan


class PlanningResult(msgspec.Struct, frozen=True):
    """Plans of models, their explanation (``Plan.explain``), capacity and planned rate.

    ``capacity`` and ``rate`` are in req/s of all of a model's requests. ``why`` returns the whole explanation if
    ``explain`` has no alternatives yet; it takes the solver about as long as the plan did. For a model in cells,
    ``models`` has all cells as one pool of executors, and ``cells`` the plan of each, the largest first.
    """

    models: dict[str, ModelPlan]
    explain: dict[str, Any]
    capacity: dict[str, float]
    rate: dict[str, float]
    why: Callable[[], dict[str, Any]] | None = None
    cells: dict[str, tuple[ModelPlan, ...]] = {}

    def keep_credits(self, running: Mapping[str, ModelPlan]) -> "PlanningResult":
        """Return this result with the credits that options have in ``running``."""
        models = {
            name: model.with_credits(running[name].credits) if name in running else model
            for name, model in self.models.items()
        }
        return msgspec.structs.replace(self, models=models)
