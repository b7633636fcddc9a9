"""The load of the last seconds, from all gateways' reports. Pure, no I/O.

Usage:

    windows = LoadWindows()
    windows.add_event(messages.decode_load(delivery.data))  # each event of ``subjects.LOAD``
    windows.current_loads()                                 # {"qwen": ModelLoad(rate=3.2, ...)}
"""

import time
from collections.abc import Callable, Iterable, Mapping

from omnibus.bus.messages import LoadCounts, LoadEvent
from omnibus.cluster.load_window import MIN_WINDOW_SECONDS, LoadWindow
from omnibus_planner.autoscale.attainment import GoalCounts
from omnibus_planner.optimize.load import ModelLoad

#: Seconds after which an idle model is removed, with its means.
FORGET_AFTER_SECONDS = 3600.0


class _TypeWindow:
    """Sums over the window of one request type, and the latest means."""

    __slots__ = ("_ended", "_estimated", "_factors", "arrivals", "done", "means", "sums")

    def __init__(self) -> None:
        self.arrivals = 0
        self.done = 0
        self.sums: dict[str, float] = {}
        self.means: dict[str, float] = {}  # of requests that ended
        self._estimated: dict[str, float] = {}  # sums of estimates over arrivals
        self._ended: dict[str, float] = {}  # and over requests that ended
        self._factors: dict[str, float] = {}  # counted over estimated

    def add(self, load: LoadCounts) -> None:
        self.arrivals += arrival_count(load)
        _add_sums(self._estimated, load.estimated, 1)
        if load.done > 0:
            self.done += load.done
            _add_sums(self.sums, load.quantities, 1)
            _add_sums(self._ended, load.estimated_done, 1)
            self._update_means()

    def remove(self, load: LoadCounts) -> None:
        self.arrivals -= arrival_count(load)
        if self.arrivals <= 0:
            self._estimated = {}  # errors of floats do not add up
        else:
            _add_sums(self._estimated, load.estimated, -1)
        if load.done <= 0:
            return
        self.done -= load.done
        if self.done <= 0:  # the means stay
            self.done, self.sums, self._ended = 0, {}, {}
            return
        _add_sums(self.sums, load.quantities, -1)
        _add_sums(self._ended, load.estimated_done, -1)
        self._update_means()

    def _update_means(self) -> None:
        self.means = {name: max(0.0, value) / self.done for name, value in self.sums.items()}
        for name, estimated_sum in self._ended.items():
            if estimated_sum > 0 and self.sums.get(name, 0.0) > 0:
                self._factors[name] = self.sums[name] / estimated_sum

    def arriving_means(self) -> dict[str, float]:
        """Return the mean quantities of arrivals.

        If gateways estimate quantities on arrival, it is their estimate times its measured error. Otherwise it is the
        mean over requests that ended, which excludes requests in progress.
        """
        return self.mean_sizes(self.arrivals, self._estimated)

    def mean_sizes(self, arrivals: int, estimated_sums: Mapping[str, float]) -> dict[str, float]:
        """Return mean quantities of ``arrivals`` requests; ``estimated_sums`` is the sum of their quantities."""
        sizes = dict(self.means)
        if arrivals > 0:
            for name, value in estimated_sums.items():
                if name in self._factors or name not in sizes:
                    sizes[name] = max(0.0, value) / arrivals * self._factors.get(name, 1.0)
        return sizes


class _ModelWindow:
    __slots__ = ("shares", "since", "types", "wanted")

    def __init__(self, since: float) -> None:
        self.since = since  # time of the first event
        self.wanted = since  # time of the last request
        self.types: dict[str, _TypeWindow] = {}
        self.shares: dict[str, float] = {}

    def update_shares(self) -> None:
        """Update the shares from the window's arrivals, if any.

        Some requests are rejected before their type is known.
        """
        came = {kind: each.arrivals for kind, each in self.types.items() if kind and each.arrivals > 0}
        total = sum(came.values())
        if total:
            self.shares = {kind: count / total for kind, count in came.items()}

    def measured_load(self, rate: float) -> ModelLoad:
        self.update_shares()
        means = {kind: type_means for kind, each in self.types.items() if (type_means := each.arriving_means())}
        return ModelLoad(rate, dict(self.shares), means)

    def sized_load(self, rate: float, counts: Mapping[str, LoadCounts]) -> ModelLoad:
        """Return the load of requests counted by type, with estimated sizes."""
        came = {kind: count for kind, load in counts.items() if kind and (count := arrival_count(load)) > 0}
        total = sum(came.values())
        shares = {kind: count / total for kind, count in came.items()}
        sizes = {kind: self.types[kind].mean_sizes(count, counts[kind].estimated) for kind, count in came.items()}
        return ModelLoad(
            rate, shares or dict(self.shares), {kind: type_sizes for kind, type_sizes in sizes.items() if type_sizes}
        )


class LoadWindows:
    """Collects the load events of all gateways over a window of ``seconds``."""

    def __init__(self, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._recent = LoadWindow(seconds, clock)
        self._models: dict[str, _ModelWindow] = {}

    def add_event(self, event: LoadEvent) -> None:
        """Add an event of one gateway."""
        self._expire_events()
        begin_time = self._recent.add_event(event)
        for name, types in event.models.items():
            model = self._models.get(name)
            if model is None:
                model = self._models[name] = _ModelWindow(begin_time)
            model.wanted = self._clock()
            for kind, load in types.items():
                model.types.setdefault(kind, _TypeWindow()).add(load)
            model.update_shares()

    def clear(self) -> None:
        """Start again after missed events; the gap does not count as idle time.

        Means and shares are kept.
        """
        self._remove_events(self._recent.clear())
        now = self._clock()
        for model in self._models.values():
            model.since = now

    def observed_seconds(self, model: str) -> float:
        """Return the seconds since the first event of ``model``; 0 if there was none."""
        model_window = self._models.get(model)
        return max(0.0, self._clock() - model_window.since) if model_window is not None else 0.0

    def current_loads(self) -> dict[str, ModelLoad]:
        """Return the load over the window, by model.

        Rates are arrivals per second, including rejected ones. Each type has its share and mean quantities. Types
        without arrivals in the window keep their last shares and means.
        """
        self._expire_events()
        rates = dict.fromkeys(self._models, 0.0)
        for event, per_second in self._recent.event_rates():
            for name, types in event.models.items():
                rates[name] += per_second * sum(map(arrival_count, types.values()))
        return {name: model.measured_load(max(0.0, rates[name])) for name, model in self._models.items()}

    def latest_loads(self) -> dict[str, ModelLoad]:
        """Return the load of each gateway's last event, for models with arrivals."""
        self._expire_events()
        counts: dict[str, dict[str, LoadCounts]] = {}
        rates: dict[str, float] = {}
        for event in self._recent.latest_events():
            for name, types in event.models.items():
                came = sum(map(arrival_count, types.values()))
                rates[name] = rates.get(name, 0.0) + came / max(MIN_WINDOW_SECONDS, event.seconds)
                for kind, load in types.items():
                    _add_counts(counts.setdefault(name, {}), kind, load)
        models = self._models
        return {name: models[name].sized_load(rates[name], own) for name, own in counts.items() if rates[name] > 0}

    def served_rates(self) -> dict[str, float]:
        """Return successful requests per second over the window, by model."""
        self._expire_events()
        rates = dict.fromkeys(self._models, 0.0)
        for event, per_second in self._recent.event_rates():
            for name, types in event.models.items():
                rates[name] += per_second * sum(load.done for load in types.values())
        return rates

    def refused_rates(self) -> dict[str, float]:
        """Return rejected requests per second over the window, by model."""
        self._expire_events()
        rates: dict[str, float] = {}
        for event, per_second in self._recent.event_rates():
            for name, types in event.models.items():
                refused_count = sum(load.refused for load in types.values())
                if refused_count > 0:
                    rates[name] = rates.get(name, 0.0) + per_second * refused_count
        return rates

    def waiting_counts(self) -> dict[str, int]:
        """Return the requests that currently wait for capacity at gateways, by model."""
        self._expire_events()
        counts: dict[str, int] = {}
        for event in self._recent.latest_events():
            for name, types in event.models.items():
                waiting = sum(load.waiting for load in types.values())
                if waiting > 0:
                    counts[name] = counts.get(name, 0) + waiting
        return counts

    def goal_counts(self) -> dict[str, GoalCounts]:
        """Return the window's requests that met their goals, and the others.

        They are by model; only models with goals are included.
        """
        self._expire_events()
        totals: dict[str, GoalCounts] = {}
        for event, _ in self._recent.event_rates():
            for name, types in event.models.items():
                met, missed_count = (
                    sum(getattr(load, field) for load in types.values()) for field in ("met", "missed")
                )
                before = totals.get(name, GoalCounts(0, 0))
                totals[name] = GoalCounts(before.met + met, before.missed + missed_count)
        return {name: counts for name, counts in totals.items() if counts != (0, 0)}

    def _expire_events(self) -> None:
        self._remove_events(self._recent.drop_expired())
        oldest = self._clock() - max(FORGET_AFTER_SECONDS, 2 * self.seconds)
        for name in [name for name, model in self._models.items() if model.wanted < oldest]:
            del self._models[name]

    def _remove_events(self, events: Iterable[LoadEvent]) -> None:
        for event in events:
            for name, types in event.models.items():
                for kind, load in types.items():
                    self._models[name].types[kind].remove(load)


def _add_sums(sums: dict[str, float], values: Mapping[str, float], sign: int) -> None:
    for name, value in values.items():
        sums[name] = sums.get(name, 0.0) + sign * value


def _add_counts(counts: dict[str, LoadCounts], kind: str, load: LoadCounts) -> None:
    """Add the arrivals of ``load`` to those of its type."""
    old_counts = counts.get(kind, LoadCounts())
    estimated_sums = dict(old_counts.estimated)
    _add_sums(estimated_sums, load.estimated, 1)
    counts[kind] = LoadCounts(came=old_counts.came + arrival_count(load), estimated=estimated_sums)


def arrival_count(load: LoadCounts) -> int:
    """Return the number of arrivals, including rejected ones."""
    return load.came + load.refused
