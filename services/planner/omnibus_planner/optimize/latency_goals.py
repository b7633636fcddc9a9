"""Goals for tail latency as admissible work of replicas.

The work follows from load curves of one replica: its rate at the most requests at a time that meet the goals. Replicas
share a queue, but none may serve more than that rate, because it would have more requests at a time. The first token
waits for encoders and then for the LLM, so both must meet the goal together. Each gets a part of the goal in proportion
to the time of its lightest load. Encoders are judged only by their total time. Transfers that no placement on one node
avoids are first subtracted from the goal.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from omnibus.profile import OptionProfile, Point
from omnibus_planner.declared.planned_spec import TailLatencyGoals
from omnibus_planner.optimize.links import unavoidable_seconds
from omnibus_planner.optimize.model_inputs import ModelInputs
from omnibus_planner.solve import utilisation

#: Routing among replicas: least outstanding work.
_ROUTING_POLICY = "shortest-queue"
#: Goals of which a request's encoders use a part.
_END_TO_END_GOALS = ("first_token", "first_audio", "done")


class TailLimits(NamedTuple):
    """Work per second for each option's replicas, and options without such limits.

    ``admissible`` has the work of 1, 2, ... replicas. ``never`` contains options that miss the goals even without load,
    with the reason. ``unmeasured`` are options without a measured load, which get the usual utilisation.
    """

    admissible: dict[str, tuple[float, ...]]
    never: dict[str, str]
    unmeasured: tuple[str, ...]


def tail_limits(ready: ModelInputs, most: Mapping[str, int]) -> TailLimits:
    """Return the limits for up to ``most`` replicas of each option."""
    goals = ready.asked.goals.of_model().loosest()  # curves do not tell request types apart
    found = TailLimits({}, {}, ())
    if not goals:
        return found
    for name, option in ready.options.items():
        if name in ready.lent:
            continue
        count = max(1, most.get(name, 1))
        if not option.curve:
            found.admissible[name] = utilisation.admissible_work(_ROUTING_POLICY, count)
            found = found._replace(unmeasured=(*found.unmeasured, name))
            continue
        part, fault = _max_utilisation(ready, option, goals)
        if fault:
            found.never[name] = fault
        else:
            found.admissible[name] = tuple(part * number for number in range(1, count + 1))
    return found


def _max_utilisation(ready: ModelInputs, option: OptionProfile, goals: Mapping[str, float]) -> tuple[float, str]:
    """Return the highest utilisation of one replica; or the goal that it misses even without load."""
    moved = unavoidable_seconds(ready, option, sends=_is_encoder(ready, option))
    budgets = {
        goal: max(0.0, limit - moved * (goal in _END_TO_END_GOALS)) * _goal_fraction(ready, option, goal)
        for goal, limit in goals.items()
    }
    full = max([option.rate, *(point.rate for point in option.curve)])
    kept = [
        point.rate
        for point in option.curve
        if all(_measured_value(ready, option, point, goal) <= limit for goal, limit in budgets.items())
    ]
    if full > 0 and max(kept, default=0.0) > 0:
        return min(1.0, max(kept) / full), ""
    light = min(option.curve, key=lambda point: point.at_once)
    missed = [
        f"{goal} is {_measured_value(ready, option, light, goal):.3g} s, {limit:.3g} s are left for it"
        for goal, limit in budgets.items()
        if _measured_value(ready, option, light, goal) > limit
    ]
    return 0.0, f"with {light.at_once} request at a time {' and '.join(missed) or 'it serves nothing'}"


def _is_encoder(ready: ModelInputs, option: OptionProfile) -> bool:
    return set(option.components) <= set(ready.model.encoders.values())


def _measured_value(ready: ModelInputs, option: OptionProfile, point: Point, goal: str) -> float:
    """Return the value that counts for ``goal``; 0 if it was not measured."""
    if _is_encoder(ready, option):
        return point.done if goal in _END_TO_END_GOALS else 0.0
    return float(getattr(point, goal))


def _goal_fraction(ready: ModelInputs, option: OptionProfile, goal: str) -> float:
    """Return the fraction of ``goal`` for ``option`` if encoders run separately."""
    if goal not in _END_TO_END_GOALS or (
        not _is_encoder(ready, option) and set(option.components) & set(ready.model.encoders.values())
    ):
        return 1.0
    encoders = [each for each in ready.options.values() if _is_encoder(ready, each)]
    others = [each for each in ready.options.values() if not set(each.components) & set(ready.model.encoders.values())]
    before, after = (_lightest_load(ready, group, goal) for group in (encoders, others))
    total = before + after
    return (before if _is_encoder(ready, option) else after) / total if before > 0 and after > 0 else 1.0


def _lightest_load(ready: ModelInputs, options: Iterable[OptionProfile], goal: str) -> float:
    """Return the lowest value of ``goal`` over all loads of these options."""
    values = [_measured_value(ready, option, point, goal) for option in options for point in option.curve]
    return min((value for value in values if value > 0), default=0.0)


def describe_goals(goals: TailLatencyGoals) -> str:
    """Return the goals in words."""
    model = goals.of_model()
    types = (f"{parts}: {_figures_text(each)}" for parts, each in model.types.items())
    return "; ".join(text for text in (_figures_text(model.usual), *types) if text)


def _figures_text(goals: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} within {value:g} s" for name, value in goals.items())
