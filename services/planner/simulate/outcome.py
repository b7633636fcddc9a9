"""Figures of a simulation: by request type, by option, and of the whole."""

from collections.abc import Mapping, Sequence
from math import ceil

import msgspec

#: Percentiles of all request types together.
PARTS = (0.5, 0.9, 0.95, 0.99)


class TypeOutcome(msgspec.Struct, frozen=True):
    """Requests of one type. ``came`` counts those that were observed, ``refused`` and ``late`` are among them.

    ``median`` and ``p99`` are in seconds by figure (``real_time`` in seconds per second of speech), ``attained`` is the
    share of requests within each goal, ``met`` that of requests within all of them: refused ones are not.
    """

    model: str
    kind: str
    came: int
    refused: int
    late: int
    throughput: float
    median: dict[str, float]
    p99: dict[str, float]
    attained: dict[str, float]
    met: float
    p90: dict[str, float] = {}


class OptionOutcome(msgspec.Struct, frozen=True):
    """Executors of one option. ``busy`` is the part of their time in which a device ran something, by component too.

    ``load`` is what came as a part of what they can serve at most (``capacity``, in req/s of the requests that go
    there); above 1 they fall behind. ``waiting`` is the mean number of requests at one executor.
    """

    model: str
    option: str
    replicas: int
    gpus: int
    gpu: str
    busy: float
    components: dict[str, float]
    load: float
    capacity: float
    waiting: float


class FirstToBreak(msgspec.Struct, frozen=True):
    """The option with the highest load, its busiest component, and the req/s of all requests that it can serve."""

    model: str
    option: str
    component: str
    rate: float


class SimulationOutcome(msgspec.Struct, frozen=True):
    """All of a simulation. ``rate`` is what came and ``throughput`` what was served, in req/s of all requests.

    ``carried`` is the part of the requests that ended in steady state, on the path where that is the least: below 1 the
    plan does not serve what came. ``makespan`` are the seconds until the last request ended,
    ``percentiles`` those of all request types together, by figure and part (``PARTS``).
    """

    seconds: float
    requests: int
    rate: float
    throughput: float
    carried: float
    types: tuple[TypeOutcome, ...]
    options: tuple[OptionOutcome, ...]
    breaks: FirstToBreak | None
    makespan: float = 0.0
    percentiles: dict[str, dict[str, float]] = {}


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest of ``values``, which are in order, that ``part`` of them do not exceed; 0 of none."""
    return values[max(0, ceil(part * len(values)) - 1)] if values else 0.0


def goal_shares(
    rows: Sequence[Mapping[str, float]], goals: Mapping[str, float], came: int
) -> tuple[dict[str, float], float]:
    """Shares of ``came`` requests within each goal, and within all; ``rows`` are the figures of those that were served.

    A figure that a request does not have, as the first sound of a text, is within any goal.
    """
    if not came:
        return dict.fromkeys(goals, 1.0), 1.0
    within = {goal: sum(row.get(goal, 0.0) <= limit for row in rows) / came for goal, limit in goals.items()}
    return within, sum(all(row.get(goal, 0.0) <= limit for goal, limit in goals.items()) for row in rows) / came
