"""Figures of a simulation: by request type, by option, and of the whole."""

from collections.abc import Mapping, Sequence
from math import ceil

import msgspec

#: Percentiles of all request types together.
PARTS = (0.5, 0.9, 0.95, 0.99)


class TypeOutcome(msgspec.Struct, frozen=True):
    """Requests of one type. ``came`` counts the observed ones, ``refused`` and ``late`` are among them.

    ``median`` and ``p99`` are in seconds by figure (``real_time`` in seconds per second of speech). ``attained`` is the
    share of requests within each goal, and ``met`` that of requests within all of them. Rejected ones are not within
    any. ``goodput`` is the req/s that end within the deadline and all goals.
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
    goodput: float = 0.0


class OptionOutcome(msgspec.Struct, frozen=True):
    """Executors of one option. ``busy`` is the fraction of time in which a device ran, also by component.

    ``load`` is the offered load as a fraction of ``capacity``, in req/s of the requests on this option; above 1 the
    queues grow. ``waiting`` is the mean number of requests at one executor.
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
    """The option with the highest load, its busiest component, and its limit.

    ``rate`` is the limit in req/s of all requests.
    """

    model: str
    option: str
    component: str
    rate: float


class SimulationOutcome(msgspec.Struct, frozen=True):
    """All figures of a simulation. ``rate`` is the offered and ``throughput`` the served rate, in req/s of all
    requests.

    ``carried`` is the fraction of requests that completed in steady state, on the path with the least. Below 1 the plan
    does not serve the offered rate. ``makespan`` is the seconds until the last request ended. ``percentiles`` are those
    of all request types together, by figure and part (``PARTS``).
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

    @property
    def goodput(self) -> float:
        """Return the req/s of all types that end within the deadline and all goals."""
        return sum(each.goodput for each in self.types)


def percentile(values: Sequence[float], part: float) -> float:
    """Return the smallest sorted value that ``part`` of them do not exceed.

    It is 0 without values.
    """
    return values[max(0, ceil(part * len(values)) - 1)] if values else 0.0


def goal_shares(
    rows: Sequence[Mapping[str, float]], goals: Mapping[str, float], came: int
) -> tuple[dict[str, float], float]:
    """Return shares of ``came`` requests within each goal, and within all.

    ``rows`` are the figures of served requests. A figure that a request does not have is within any goal. For example,
    a text answer has no first audio.
    """
    if not came:
        return dict.fromkeys(goals, 1.0), 1.0
    within = {goal: sum(row.get(goal, 0.0) <= limit for row in rows) / came for goal, limit in goals.items()}
    return within, sum(meets_all(row, goals) for row in rows) / came


def meets_all(row: Mapping[str, float], goals: Mapping[str, float]) -> bool:
    """Return True if the figures of one request are within all goals."""
    return all(row.get(goal, 0.0) <= limit for goal, limit in goals.items())
