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


def declared_load(planner: "Planner", plan_result: PlanningResult | None, first: Loads) -> dict[str, ModelLoad]:
    """Return the load of ``plan_result`` by its explanation.

    The request sizes are those of ``first``.
    """
    planned_models = plan_result.explain.get("planned", {}).get("models", {}) if plan_result is not None else {}
    return {
        name: ModelLoad(
            model.planned.rate if model.planned is not None else 0.0,
            {kind: each["rate"] for kind, each in planned_models.get(name, {}).get("types", {}).items()},
            first[name].quantities if name in first else {},
        )
        for name, model in planner.models.items()
    }


async def with_alternatives(plan_result: PlanningResult) -> PlanningResult:
    """Add the alternatives, which are computed after the plan is in force."""
    if plan_result.why is None:
        return plan_result
    return msgspec.structs.replace(plan_result, explain=await asyncio.to_thread(plan_result.why), why=None)


def with_forecasts(plan_result: PlanningResult, forecasts: Mapping[str, RateForecast]) -> PlanningResult:
    """Add the forecasts that determined ``plan_result`` to its explanation."""
    forecast_values = {name: each._asdict() for name, each in forecasts.items()}
    return (
        msgspec.structs.replace(plan_result, explain={**plan_result.explain, FORECAST: forecast_values})
        if forecast_values
        else plan_result
    )
