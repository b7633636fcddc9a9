"""Check of a simulated plan against latency goals, and the highest rate that keeps them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from omnibus.plan_goals import ModelGoals
from omnibus_planner.simulate.arrivals import Arrival
from omnibus_planner.simulate.outcome import meets_all
from omnibus_planner.simulate.report import Observations
from omnibus_planner.simulate.run import PlanSimulation, SimulatedPlan

#: Requests between two looks at the misses so far.
_LOOK_INTERVAL = 32


def keeps_goals(
    plan: SimulatedPlan, arrivals: Sequence[Arrival], seconds: float, *, warm_up: float, share: float, seed: int = 1
) -> bool:
    """Return True if ``share`` of the requests meet all goals.

    It counts those that arrive after the fraction ``warm_up`` of ``seconds``. With goals by request type, ``share`` of
    each type must meet them: many fast texts do not make up for late images. The simulation ends as soon as too many
    have missed them. Raises ``BadRequest`` for a request that the plan has no path for.
    """
    run = PlanSimulation(plan, seconds, seconds * warm_up, seed)
    counts = _GoalCounts(plan.goals, run.seen, arrivals, 1.0 - share)
    run.send_requests(counts.until_too_many_missed(arrivals))
    return counts.enough_met()


class _GoalCounts:
    """Requests that met and missed their goals, by group: a request type, or all of a model."""

    def __init__(
        self, goals: Mapping[str, ModelGoals], seen: Observations, arrivals: Sequence[Arrival], fraction: float
    ) -> None:
        self._goals = goals
        self._types = seen.types
        self._read = Counter[tuple[str, str]]()
        self._met, self._missed = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
        observed = (each for each in arrivals if seen.warm <= each.at <= seen.end)
        self._came = Counter(self._group(each.model, each.kind) for each in observed)
        self._allowed = {group: fraction * count + 1e-9 for group, count in self._came.items()}

    def until_too_many_missed(self, arrivals: Sequence[Arrival]) -> Iterator[Arrival]:
        for number, arrival in enumerate(arrivals):
            if number % _LOOK_INTERVAL == 0:
                self._count()
                if any(self._missed[group] > most for group, most in self._allowed.items()):
                    return
            yield arrival

    def enough_met(self) -> bool:
        """Return True at the end if enough requests of each group met their goals: rejected ones did not."""
        self._count()
        return all(self._met[group] >= self._came[group] - most for group, most in self._allowed.items())

    def _count(self) -> None:
        """Count the requests that ended since the last call."""
        for (model, kind), type_rows in self._types.items():
            group, goals = self._group(model, kind), self._goals[model].of_type(kind)
            new = type_rows.rows[self._read[model, kind] :]
            self._read[model, kind] += len(new)
            met = sum(meets_all(row, goals) for row in new)
            self._met[group] += met
            self._missed[group] += len(new) - met

    def _group(self, model: str, kind: str) -> tuple[str, str]:
        return model, kind if self._goals[model].types else ""


def highest_rate(keeps_up: Callable[[float], bool], guess: float, precision: float, least: float) -> float:
    """Return the highest req/s of which ``keeps_up`` is true, to the relative ``precision``; 0 below ``least``.

    It starts at ``guess``.
    """
    low, high = 0.0, max(guess, least)
    while keeps_up(high):
        low, high = high, 2 * high
    while not low and high > least:
        half = max(least, high / 2)
        low, high = (half, high) if keeps_up(half) else (0.0, half)
    while low and high - low > precision * high:
        middle = (low + high) / 2
        low, high = (middle, high) if keeps_up(middle) else (low, middle)
    return low
