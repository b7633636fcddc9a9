"""Explanations of plans that follow the load: what they were made for, what was expected, what else there was."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from omnibus.plan import Plan
from services.planner.autoscale.trend import RateForecast
from services.planner.optimize.load import Loads, ModelLoad
from services.planner.optimize.result import PlanningResult

if TYPE_CHECKING:  # see ``services.planner.optimize``
    from services.planner.optimize.planner import Planner

#: Where a plan that follows the load says which one, in ``Plan.explain``.
LOAD = "load"
#: Where a plan that goes by a forecast says what was expected, and the part by which that may be off.
FORECAST = "forecast"


def recorded_load(plan: Plan | None) -> dict[str, ModelLoad]:
    """The load that ``plan`` was made for, when it followed the load; a planner that starts goes on from there."""
    try:
        return msgspec.convert(plan.explain.get(LOAD, {}), dict[str, ModelLoad]) if plan is not None else {}
    except msgspec.ValidationError:  # another build's
        return {}


def declared_load(planner: "Planner", planned: PlanningResult | None, first: Loads) -> dict[str, ModelLoad]:
    """Return the load that ``planned`` was made for, by its own explanation; request sizes are those of ``first``."""
    told = planned.explain.get("planned", {}).get("models", {}) if planned is not None else {}
    return {
        name: ModelLoad(
            model.planned.rate if model.planned is not None else 0.0,
            {kind: each["rate"] for kind, each in told.get(name, {}).get("types", {}).items()},
            first[name].quantities if name in first else {},
        )
        for name, model in planner.models.items()
    }


async def with_alternatives(planned: PlanningResult) -> PlanningResult:
    """With alternatives, which are looked for once it is taken."""
    if planned.why is None:
        return planned
    return msgspec.structs.replace(planned, explain=await asyncio.to_thread(planned.why), why=None)


def with_forecasts(planned: PlanningResult, forecasts: Mapping[str, RateForecast]) -> PlanningResult:
    """Return ``planned`` with what was expected of the models that a forecast was gone by for."""
    told = {name: each._asdict() for name, each in forecasts.items()}
    return msgspec.structs.replace(planned, explain={**planned.explain, FORECAST: told}) if told else planned
