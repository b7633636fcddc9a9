"""Explanations of plans that follow the load: planned load, forecast, alternatives.

Short reason for a plan that follows the load: ``load: qwen 12.1 req/s, 61 % vision+thinker (was 20 %)``.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from omnibus.plan import Plan
from omnibus_planner.autoscale.forecast import RateForecast
from omnibus_planner.optimize.load import Loads, ModelLoad
from omnibus_planner.optimize.result import PlanningResult

if TYPE_CHECKING:
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


#: Smallest changes to mention: of a rate and of a quantity relative to before, of a share as a fraction of all.
MIN_RATE_CHANGE, MIN_QUANTITY_CHANGE, MIN_SHARE_CHANGE = 0.1, 0.2, 0.03
_NO_LOAD = ModelLoad(0.0)


def describe_load_change(load: Loads, before: Loads) -> str:
    """Describe the changes since the load ``before``; each model's rate is always included."""
    return "load: " + "; ".join(
        f"{name} {', '.join(_describe_model_change(load[name], before.get(name, _NO_LOAD)))}" for name in sorted(load)
    )


def _describe_model_change(load: ModelLoad, before: ModelLoad) -> Iterator[str]:
    has_changed = before.rate > 0 and abs(load.rate / before.rate - 1) > MIN_RATE_CHANGE
    yield f"{load.rate:.3g} req/s" + (f" (was {before.rate:.3g})" if has_changed else "")
    shares, were = _normalized_shares(load), _normalized_shares(before)
    shifts = {kind: abs(share - were.get(kind, 0.0)) for kind, share in shares.items()}
    name = max(shifts, key=lambda kind: (round(shifts[kind], 3), kind.count("+")), default="")  # the more specific one
    if name and were and shifts[name] > MIN_SHARE_CHANGE:
        yield f"{100 * shares[name]:.0f} % {name} (was {100 * were.get(name, 0.0):.0f} %)"
    known_shares = {
        kind: share for kind, share in shares.items() if kind in load.quantities and kind in before.quantities
    }
    quantities, had = _mean_quantities(load, known_shares), _mean_quantities(before, known_shares)
    changes = {name: abs(mean / had[name] - 1) for name, mean in quantities.items() if had.get(name, 0.0) > 0}
    name = max(changes, key=lambda each: changes[each], default="")
    if name and changes[name] > MIN_QUANTITY_CHANGE:
        yield f"{quantities[name]:.0f} {name} (were {had[name]:.0f})"


def _normalized_shares(load: ModelLoad) -> dict[str, float]:
    total = sum(load.shares.values())
    return {kind: share / total for kind, share in load.shares.items()} if total > 0 else {}


def _mean_quantities(load: ModelLoad, shares: Mapping[str, float]) -> dict[str, float]:
    """Return the mean quantities over these types, at fixed shares.

    So differences do not come from the mix alone.
    """
    sums: dict[str, float] = {}
    for kind, share in shares.items():
        for name, mean in load.quantities.get(kind, {}).items():
            sums[name] = sums.get(name, 0.0) + share * mean
    total = sum(shares.values())
    return {name: mean / total for name, mean in sums.items()}
