"""Scores of plans: figures of a simulation of the requests next to measured ones. Pure."""

from collections.abc import Collection, Iterator, Mapping

import msgspec

from omnibus.bus.messages import BatchCounts
from omnibus.cells import base_option
from omnibus.cluster.latency_histogram import FIGURES
from omnibus.plan import Plan
from omnibus.plan_goals import ModelGoals
from omnibus.plan_score import OptionScore, PlanScore, ScoredValue, TypeScore, score_value
from omnibus_planner.score.measurement import MeasuredOption, PlanMeasurement, ServedType
from omnibus_planner.simulate.devices import LANGUAGE_KINDS, ModelDevices
from omnibus_planner.simulate.outcome import OptionOutcome, SimulationOutcome, TypeOutcome

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
