"""Capacity of deployed plans along their paths, for the current requests."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from omnibus.plan import ModelPlan, Path
from omnibus_planner.optimize.demand import ModelDemand
from omnibus_planner.optimize.latency_goals import tail_limits
from omnibus_planner.optimize.model_inputs import ModelInputs


class _Stop(NamedTuple):
    """Seconds per request on ``option``, of the model that owns the executors."""

    option: tuple[str, str]
    seconds: float | None


def plan_capacity(
    ready: Mapping[str, ModelInputs], models: Mapping[str, ModelPlan], demands: Mapping[str, ModelDemand]
) -> dict[str, float]:
    """Return req/s by model if all of them grow in proportion.

    A model without a path, or with a path that was not measured, has 0.
    """
    stops = {name: list(_path_stops(ready[name], models[name], demands[name])) for name in ready if name in models}
    work: dict[tuple[str, str], float] = {}
    for name, each in stops.items():
        for option, seconds in each:
            work[option] = work.get(option, 0.0) + (seconds or 0.0) * _demand_weight(demands[name])
    found = {}
    for name, each in stops.items():
        known = bool(each) and all(seconds is not None for _, seconds in each)
        busy = [option for option, seconds in each if seconds]
        rates = [_option_supply(ready, models, option) / work[option] for option in busy]
        found[name] = min(rates) * _demand_weight(demands[name]) if known and rates else 0.0
    return found


def _demand_weight(demand: ModelDemand) -> float:
    return demand.rate or 1.0


def _path_stops(ready: ModelInputs, plan: ModelPlan, demand: ModelDemand) -> Iterator[_Stop]:
    for kind, share in demand.mixes[0].items():
        paths = plan.paths_for(frozenset(kind.split("+"))) if share > 0 else ()
        total = sum(path.rate for path in paths)
        if share > 0 and not total > 0:
            yield _Stop((ready.name, ""), None)
        for path in paths:
            if path.rate > 0:
                yield from _stops_along(ready, plan, kind, path, demand, share * path.rate / total)


def _stops_along(
    ready: ModelInputs, plan: ModelPlan, kind: str, path: Path, demand: ModelDemand, share: float
) -> Iterator[_Stop]:
    spent = ready.costs.seconds_per_request(demand.quantities)
    for name in dict.fromkeys(path.options.values()):
        role = tuple(part for part in ready.model.components if path.options.get(part) == name)
        seconds = spent(kind, name, role) if name in ready.options else None
        owner, _, option = plan.options[name].of.rpartition("/")
        yield _Stop((owner or ready.name, option or name), None if seconds is None else seconds * share)


def _option_supply(ready: Mapping[str, ModelInputs], models: Mapping[str, ModelPlan], option: tuple[str, str]) -> float:
    """Return the seconds of work per second that an option may get."""
    owner, name = option
    deployed = models[owner].options.get(name) if owner in models else None
    if deployed is None or not deployed.replicas:
        return 0.0
    if owner not in ready or not ready[owner].asked.goals.of_model():
        return float(deployed.replicas)
    levels = tail_limits(ready[owner], {name: deployed.replicas}).admissible.get(name)
    return levels[deployed.replicas - 1] if levels else 0.0
