"""Explanations of plans that follow the load: planned load, forecast, alternatives."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from omnibus.plan import Plan
from omnibus_planner.autoscale.trend import RateForecast
from omnibus_planner.optimize.load import Loads, ModelLoad
from omnibus_planner.optimize.result import PlanningResult

if TYPE_CHECKING:  # see ``omnibus_planner.optimize``
    from omnibus_planner.optimize.planner import Planner

#: Key in ``Plan.explain`` of the load that a plan follows.
LOAD = "load"
#: Key in ``Plan.explain`` of the forecast that a plan follows, with its error as a fraction.
FORECAST = "forecast"


def recorded_load(plan: Plan | None) -> dict[str, ModelLoad]:
    """Return the load that ``plan`` follows, with which a new planner continues."""
    try:
        return msgspec.convert(plan.explain.get(LOAD, {}), dict[str, ModelLoad]) if plan is not None else {}
    except msgspec.ValidationError:  # another build's
        return {}


def declared_load(planner: "Planner", planned: PlanningResult | None, first: Loads) -> dict[str, ModelLoad]:
    """Return the load of ``planned`` by its explanation.

    The request sizes are those of ``first``.
    """
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
    """Add the alternatives, which are computed after the plan is in force."""
    if planned.why is None:
        return planned
    return msgspec.structs.replace(planned, explain=await asyncio.to_thread(planned.why), why=None)


def with_forecasts(planned: PlanningResult, forecasts: Mapping[str, RateForecast]) -> PlanningResult:
    """Add the forecasts that determined ``planned`` to its explanation."""
    told = {name: each._asdict() for name, each in forecasts.items()}
    return msgspec.structs.replace(planned, explain={**planned.explain, FORECAST: told}) if told else planned
