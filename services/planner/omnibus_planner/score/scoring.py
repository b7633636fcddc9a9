"""Scores of plans: figures of a simulation of the requests next to measured ones. Pure.

Measurement of a plan: its requests, and the activity of its executors.

It begins when the plan is in force. Pure: no I/O, and the clock is passed in.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import reduce
from operator import add, sub
from typing import NamedTuple

import msgspec
from msgspec.structs import astuple

from omnibus.bus.messages import BatchCounts, ExecutorStatus, LoadCounts, LoadEvent
from omnibus.cells import base_option
from omnibus.cluster.latency_histogram import FIGURES, LatencyHistogram, merge_figures
from omnibus.plan import Plan
from omnibus.plan_goals import ModelGoals
from omnibus.plan_score import OptionScore, PlanScore, ScoredValue, TypeScore, score_value
from omnibus_planner.simulate.arrivals import Arrival, ArrivalCount, scattered_arrivals
from omnibus_planner.simulate.devices import LANGUAGE_KINDS, ModelDevices
from omnibus_planner.simulate.outcome import OptionOutcome, SimulationOutcome, TypeOutcome

#: Last reports of executors by id, and the times of their arrival.
Reports = Mapping[str, tuple[ExecutorStatus, float]]
#: An executor counts if it reported for this fraction of the measured time.
_MIN_REPORTED_FRACTION = 0.8


class ServedType:
    """Requests of one type: arrivals and successes.

    It also has their latencies by figure, and the sums of their quantities.
    """

    def __init__(self) -> None:
        self.came = self.done = 0
        self.figures: dict[str, LatencyHistogram] = {}
        self.quantities: dict[str, float] = {}

    def add_counts(self, counts: LoadCounts) -> None:
        self.came += counts.came + counts.refused
        self.done += counts.done
        merge_figures(self.figures, counts.figures.items())
        for name, value in counts.quantities.items():
            self.quantities[name] = self.quantities.get(name, 0.0) + value

    def mean_sizes(self) -> dict[str, float]:
        """Return the mean quantities of successful requests."""
        return {name: value / self.done for name, value in self.quantities.items()} if self.done else {}


class MeasuredOption(NamedTuple):
    """Executors of an option.

    ``busy`` is the fraction of time that they computed, and ``jobs`` are those of their busiest component. ``seconds``
    is the total time of all of them. ``batches`` are those of each component.
    """

    busy: float
    jobs: int
    seconds: float
    batches: Mapping[str, BatchCounts]


class PlanMeasurement:
    """Counts requests from ``began`` on, by a clock; ``reports`` are the executors' last ones."""

    def __init__(self, plan: Plan, began: float, reports: Reports) -> None:
        self.plan = plan
        self.began = began
        self.types: dict[tuple[str, str], ServedType] = {}
        self._first = dict(reports)
        self._arrivals: list[ArrivalCount] = []

    @property
    def requests(self) -> int:
        """Number of successful requests."""
        return sum(each.done for each in self.types.values())

    def add_event(self, event: LoadEvent, at: float) -> None:
        """Add a gateway's event, which arrived at ``at``. Counts under another plan are ignored."""
        if event.epoch != self.plan.epoch:
            return
        end = at - self.began
        begin = max(0.0, end - event.seconds)
        for model, types in event.models.items():
            for kind, counts in types.items():
                if not kind:
                    continue  # rejected before its type was known
                self.types.setdefault((model, kind), ServedType()).add_counts(counts)
                came = counts.came + counts.refused
                if came > 0:
                    self._arrivals.append(ArrivalCount(begin, end, model, kind, came))

    def arrivals(self, models: Mapping[str, object]) -> list[Arrival]:
        """Return the requests to ``models`` in order.

        They have random times between the events of their gateway, and sizes around their means.
        """
        sizes = {key: each.mean_sizes() for key, each in self.types.items()}
        return scattered_arrivals([each for each in self._arrivals if each.model in models], sizes)

    def option_usage(self, reports: Reports, seconds: float) -> dict[tuple[str, str], MeasuredOption]:
        """Return the activity of executors, by model and option.

        ``reports`` are those at the end, after ``seconds``. An option is left out if one of its executors started,
        stopped or did not report meanwhile.
        """
        usage: dict[tuple[str, str], MeasuredOption] = {}
        for model, plan in self.plan.models.items():
            for option, option_plan in plan.options.items():
                rows = list(self._executor_rows(model, option, plan.option_origin(option), reports, seconds))
                if rows and len(rows) == option_plan.replicas and all(row.busy > 0 for row in rows):
                    usage[model, option] = _add_rows(rows)
        return usage

    def _executor_rows(
        self, model: str, option: str, origin: str, reports: Reports, seconds: float
    ) -> Iterator[MeasuredOption]:
        for id, (last, at) in reports.items():
            first, since = self._first.get(id, (None, at))
            matches_option = (last.model, last.option) == (model, option) and last.origin in ("", origin)
            if not matches_option or first is None or at - since < _MIN_REPORTED_FRACTION * seconds:
                continue
            jobs = [after - before for before, after in zip(first.done, last.done, strict=False)]
            busy = (sum(last.busy) - sum(first.busy)) / (at - since)
            yield MeasuredOption(busy, max(jobs, default=0), at - since, _batch_rows(first, last))


def _batch_rows(first: ExecutorStatus, last: ExecutorStatus) -> dict[str, BatchCounts]:
    """Return batches per component between two reports; none if the executor does not count them."""
    reports = zip(last.components, first.batches, last.batches, strict=False)
    return {part: _combine_counts(sub, (after, before)) for part, before, after in reports}


def _add_rows(rows: Sequence[MeasuredOption]) -> MeasuredOption:
    """Combine all executors of an option."""
    parts = set.intersection(*({*row.batches} for row in rows))
    return MeasuredOption(
        sum(row.busy for row in rows) / len(rows),
        sum(row.jobs for row in rows),
        sum(row.seconds for row in rows),
        {part: _combine_counts(add, [row.batches[part] for row in rows]) for part in parts},
    )


def _combine_counts(combine: Callable[[int, int], int], counts: Sequence[BatchCounts]) -> BatchCounts:
    return BatchCounts(*(reduce(combine, column) for column in zip(*map(astuple, counts), strict=True)))


#: Load of the busiest option above which latencies depend on a queue of unknown length, and are not scored.
MAX_SCORED_LOAD = 0.9
#: Fewest requests of a type for a 99th percentile, and for a median.
MIN_P99_REQUESTS, MIN_P50_REQUESTS = 100, 20

Usage = Mapping[tuple[str, str], MeasuredOption]


def score_plan(
    measurement: PlanMeasurement,
    outcome: SimulationOutcome,
    usage: Usage,
    seconds: float,
    at: float,
    timed_models: Collection[str],
    devices: Mapping[str, ModelDevices],
) -> PlanScore:
    """Return the score of the plan over ``seconds`` before ``at``.

    ``at`` is in Unix seconds. It has latencies of the models ``timed_models``. ``devices`` are the simulated ones, by
    model.
    """
    load = max((each.load for each in outcome.options), default=0.0)
    types = []
    for each in outcome.types:
        served_type = measurement.types.get((each.model, each.kind))
        if served_type is not None:
            type_score = _score_rate(each, served_type, seconds)
            is_known = each.model in timed_models and load <= MAX_SCORED_LOAD
            types.append(
                _with_latencies(type_score, each, served_type, measurement.plan.models[each.model].latency_goals)
                if is_known
                else type_score
            )
    return PlanScore(
        epoch=measurement.plan.epoch,
        at=at,
        seconds=seconds,
        load=load,
        types=tuple(types),
        options=tuple(_score_options(measurement.plan, outcome, usage, devices)),
    )


def _score_rate(type_outcome: TypeOutcome, served_type: ServedType, seconds: float) -> TypeScore:
    rate = score_value(type_outcome.throughput, served_type.done / seconds)
    return TypeScore(type_outcome.model, type_outcome.kind, served_type.done, rate)


def _with_latencies(
    type_score: TypeScore, type_outcome: TypeOutcome, served_type: ServedType, goals: ModelGoals
) -> TypeScore:
    p50 = _score_percentiles(served_type, type_outcome.median, 0.5, MIN_P50_REQUESTS)
    p99 = _score_percentiles(served_type, type_outcome.p99, 0.99, MIN_P99_REQUESTS)
    goal_scores = {
        goal: score_value(type_outcome.attained[goal], served_type.figures[goal].share_within(limit))
        for goal, limit in goals.of_type(type_outcome.kind).items()
        if goal in type_outcome.attained and goal in served_type.figures
    }
    return msgspec.structs.replace(type_score, p50=p50, p99=p99, attained=goal_scores)


def _score_percentiles(
    served_type: ServedType, predictions: Mapping[str, float], part: float, least: int
) -> dict[str, ScoredValue]:
    return {
        name: score_value(predictions[name], figure.percentile(part))
        for name in FIGURES
        if name in predictions and (figure := served_type.figures.get(name)) is not None and figure.total >= least
    }


def _score_options(
    plan: Plan, outcome: SimulationOutcome, usage: Usage, devices: Mapping[str, ModelDevices]
) -> Iterator[OptionScore]:
    for each in outcome.options:
        measured_option = usage.get((each.model, each.option))
        if measured_option is not None:
            base_name = base_option(plan.models[each.model], each.option)
            seconds = _score_seconds(base_name, each, measured_option, devices[each.model])
            yield OptionScore(
                each.model, each.option, measured_option.jobs, score_value(each.busy, measured_option.busy), seconds
            )


def _score_seconds(
    base_name: str, option_outcome: OptionOutcome, measured_option: MeasuredOption, devices: ModelDevices
) -> ScoredValue | None:
    """Score the seconds of an option that is a language model.

    The promise is the seconds of its passes and steps by the times of the option ``base_name``. It is None if the
    option does not count them. In an executor with other components, passes and steps take longer because of sharing,
    which no curve contains.
    """
    batches, parts = measured_option.batches, option_outcome.components
    has_counts = all(batches.get(part, BatchCounts()) != BatchCounts() for part in parts)
    if not has_counts or not all(devices.kinds[part] in LANGUAGE_KINDS for part in parts):
        return None
    promise = sum(devices.batch_seconds(base_name, part, batches[part]) for part in parts)
    return score_value(promise, measured_option.busy * measured_option.seconds) if promise > 0 else None
