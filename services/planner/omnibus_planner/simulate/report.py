"""Observations of a simulated plan, and the resulting figures."""

from collections.abc import Iterator, Mapping

from omnibus.cluster.latency_histogram import FIGURES
from omnibus.errors import BadRequest
from omnibus.plan import Path
from omnibus.plan_goals import ModelGoals
from omnibus_planner.simulate.arrivals import Arrival
from omnibus_planner.simulate.cluster import SimulatedCluster
from omnibus_planner.simulate.observed import ObservedRequest
from omnibus_planner.simulate.outcome import (
    PARTS,
    FirstToBreak,
    OptionOutcome,
    SimulationOutcome,
    TypeOutcome,
    goal_shares,
    percentile,
)
from omnibus_planner.simulate.saturate import RoleRate, saturated_rate

#: Fewest requests of a path for its completed fraction to count.
_MIN_PATH_REQUESTS = 150
#: Roles below this fraction of an option's requests are ignored for its capacity.
_RARE_ROLE_FRACTION = 0.002

_Kind = tuple[str, str]


class _Flow:
    """Requests of one type on one path."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.came = self.ended = 0
        self.sizes: dict[str, float] = {}  # sums over arrivals
        self.tokens = self.speech_seconds = 0.0  # sums over completed requests

    def mean_sizes(self) -> dict[str, float]:
        """Return mean quantities; those without arrival sizes are the drawn ones."""
        found = {name: total / self.came for name, total in self.sizes.items()}
        for name, total in (("completion_tokens", self.tokens), ("speech_seconds", self.speech_seconds)):
            if total and not found.get(name):
                found[name] = total / self.ended
        return found


class _TypeRows:
    def __init__(self) -> None:
        self.came = self.refused = self.ended = 0
        self.rows: list[dict[str, float]] = []
        self.ended_rows: list[dict[str, float]] = []  # whenever they arrived


class Observations:
    """Requests from virtual second ``warm`` to ``end``, and their outcomes."""

    def __init__(self, warm: float, end: float) -> None:
        self.warm = warm
        self.end = end
        self.types: dict[_Kind, _TypeRows] = {}
        self.flows: dict[tuple[str, str, str], _Flow] = {}
        self.busy: dict[tuple[str, str], dict[str, float]] = {}
        self.waiting: dict[tuple[str, str], float] = {}
        self.requests = 0
        self.last_end = 0.0

    @property
    def seconds(self) -> float:
        return max(1e-9, self.end - self.warm)

    def note_arrival(self, arrival: Arrival, path: Path, *, refused: bool) -> None:
        """Count a request with the planned ``path``; if ``refused``, it was rejected for lack of capacity."""
        self.requests += 1
        if arrival.at < self.warm:
            return
        rows = self.types.setdefault((arrival.model, arrival.kind), _TypeRows())
        rows.came += 1
        rows.refused += refused
        key = arrival.model, arrival.kind, path.name
        flow = self.flows.get(key)
        if flow is None:
            flow = self.flows[key] = _Flow(path)
        flow.came += 1
        for name, size in arrival.sizes.items():
            flow.sizes[name] = flow.sizes.get(name, 0.0) + size

    def note_done(self, request: ObservedRequest, at: float) -> None:
        """Count a completed request."""
        self.last_end = max(self.last_end, at)
        rows = self.types.setdefault((request.model, request.name), _TypeRows())
        figures = _request_figures(request, at)
        if self.warm <= at <= self.end:
            rows.ended += 1
            rows.ended_rows.append(figures)
            flow = self.flows.get((request.model, request.name, request.path))
            if flow is not None:
                flow.ended += 1
                flow.tokens += request.tokens
                flow.speech_seconds += request.spoken_seconds
        if request.arrival >= self.warm:
            rows.rows.append(figures)

    def mark_busy(self, cluster: SimulatedCluster) -> None:
        """Start counting the utilisation of devices."""
        self.busy = {key: _busy_seconds(cluster, key) for key in cluster.pools}

    def note_end(self, cluster: SimulatedCluster) -> None:
        """End the observation."""
        for key, pool in cluster.pools.items():
            after = _busy_seconds(cluster, key)
            self.busy[key] = {part: seconds - self.busy[key].get(part, 0.0) for part, seconds in after.items()}
            self.waiting[key] = sum(each.inflight for each in pool) / len(pool) if pool else 0.0


def _busy_seconds(cluster: SimulatedCluster, key: tuple[str, str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for executor in cluster.pools[key]:
        for part, lane in executor.lanes.items():
            found[part] = found.get(part, 0.0) + lane.lane.busy
    return found


def _request_figures(request: ObservedRequest, at: float) -> dict[str, float]:
    """Return seconds by figure, without figures that the request does not have."""
    found = {"done": at - request.arrival}
    if request.first_token:
        found["first_token"] = request.first_token - request.arrival
        if request.tokens > 1:
            found["token"] = (request.last_token - request.first_token) / (request.tokens - 1)
    if request.first_audio:
        found["first_audio"] = request.first_audio - request.arrival
        found["real_time"] = (at - request.first_audio) / request.spoken_seconds if request.spoken_seconds else 0.0
    return found


def build_outcome(cluster: SimulatedCluster, seen: Observations, goals: Mapping[str, ModelGoals]) -> SimulationOutcome:
    """Build all figures; ``goals`` are by model."""
    types = tuple(
        _type_outcome(cluster, seen, key, rows, goals.get(key[0], ModelGoals()).of_type(key[1]))
        for key, rows in sorted(seen.types.items())
    )
    options = tuple(_option_outcomes(cluster, seen))
    came = sum(each.came for each in types)
    rate = came / seen.seconds
    parts = [flow.ended / flow.came for flow in seen.flows.values() if flow.came >= _MIN_PATH_REQUESTS]
    throughput = sum(each.throughput for each in types)
    return SimulationOutcome(
        seconds=seen.seconds,
        requests=seen.requests,
        rate=rate,
        throughput=throughput,
        carried=min([1.0, *parts, *([throughput / rate] if rate else [])]),
        types=types,
        options=options,
        breaks=_first_to_break(options, rate),
        makespan=seen.last_end,
        percentiles=_all_percentiles(seen),
    )


def _all_percentiles(seen: Observations) -> dict[str, dict[str, float]]:
    rows = [row for each in seen.types.values() for row in each.rows]
    columns = {name: sorted(row[name] for row in rows if name in row) for name in FIGURES}
    return {
        name: {f"{part:g}": percentile(values, part) for part in PARTS} for name, values in columns.items() if values
    }


def _type_outcome(
    cluster: SimulatedCluster, seen: Observations, key: _Kind, rows: _TypeRows, goals: Mapping[str, float]
) -> TypeOutcome:
    served, timely_rows = (
        [row for row in each if row["done"] <= cluster.limits.deadline] for each in (rows.rows, rows.ended_rows)
    )
    columns = {name: sorted(row[name] for row in served if name in row) for name in FIGURES}
    attained, met = goal_shares(served, goals, rows.came)
    return TypeOutcome(
        model=key[0],
        kind=key[1],
        came=rows.came,
        refused=rows.refused,
        late=rows.came - rows.refused - len(served),
        throughput=rows.ended / seen.seconds,
        median={name: percentile(values, 0.5) for name, values in columns.items() if values},
        p99={name: percentile(values, 0.99) for name, values in columns.items() if values},
        attained=attained,
        met=met,
        p90={name: percentile(values, 0.9) for name, values in columns.items() if values},
        goodput=goal_shares(timely_rows, goals, len(timely_rows))[1] * len(timely_rows) / seen.seconds,
    )


def _option_outcomes(cluster: SimulatedCluster, seen: Observations) -> Iterator[OptionOutcome]:
    roles = option_roles(cluster, seen)
    for key, pool in cluster.pools.items():
        model, option = key
        deployed = cluster.models[model].plan.options[option]
        busy = {part: seconds / seen.seconds / max(1, len(pool)) for part, seconds in seen.busy[key].items()}
        came = sum(role.rate for role in roles.get(key, ()))
        capacity = _option_capacity(cluster, key, roles[key]) if came > 0 and pool else 0.0
        yield OptionOutcome(
            model=model,
            option=option,
            replicas=len(pool),
            gpus=deployed.gpus * len(pool),
            gpu=deployed.gpu,
            busy=sum(busy.values()),
            components=busy,
            load=came / capacity if capacity > 0 else 0.0,
            capacity=capacity,
            waiting=seen.waiting[key],
        )


def option_roles(cluster: SimulatedCluster, seen: Observations) -> dict[tuple[str, str], list[RoleRate]]:
    """Return the roles of requests at each option.

    A role has its req/s and mean sizes.
    """
    found: dict[tuple[str, str], list[RoleRate]] = {}
    for (model, _, _), flow in seen.flows.items():
        sizes = flow.mean_sizes()
        for option in dict.fromkeys(flow.path.options.values()):
            role = frozenset(part for part, runs in flow.path.options.items() if runs == option)
            found.setdefault(cluster.pool_of(model, option), []).append(RoleRate(role, flow.came / seen.seconds, sizes))
    return found


def _option_capacity(cluster: SimulatedCluster, key: tuple[str, str], roles: list[RoleRate]) -> float:
    """Return the highest req/s of an option's executors for these roles."""
    total = sum(role.rate for role in roles)
    usual = [role for role in roles if role.rate >= _RARE_ROLE_FRACTION * total]
    name, option = key
    model = cluster.models[name]
    try:
        return len(cluster.pools[key]) * saturated_rate(model.devices, model.timed_option(option), usual, name)
    except BadRequest:
        return 0.0


def _first_to_break(options: tuple[OptionOutcome, ...], rate: float) -> FirstToBreak | None:
    loaded = [each for each in options if each.load > 0]
    if not loaded:
        return None
    worst = max(loaded, key=lambda each: each.load)
    busiest = max(worst.components, key=lambda part: worst.components[part])
    return FirstToBreak(worst.model, worst.option, busiest, rate / worst.load)
