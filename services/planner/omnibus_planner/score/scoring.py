"""Scores of plans: figures of a simulation of the requests next to measured ones. Pure."""

from collections.abc import Collection, Iterator, Mapping

import msgspec

from omnibus.bus.messages import BatchCounts
from omnibus.cells import base_option
from omnibus.cluster.latency_histogram import FIGURES
from omnibus.plan import Plan
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
    measured: PlanMeasurement,
    outcome: SimulationOutcome,
    usage: Usage,
    seconds: float,
    at: float,
    timed: Collection[str],
    devices: Mapping[str, ModelDevices],
) -> PlanScore:
    """Return the score of the plan over ``seconds`` before ``at``.

    ``at`` is in Unix seconds. It has latencies of the models ``timed``. ``devices`` are the simulated ones, by model.
    """
    load = max((each.load for each in outcome.options), default=0.0)
    types = []
    for each in outcome.types:
        found = measured.types.get((each.model, each.kind))
        if found is not None:
            scored = _score_rate(each, found, seconds)
            known = each.model in timed and load <= MAX_SCORED_LOAD
            types.append(
                _with_latencies(scored, each, found, measured.plan.models[each.model].goals) if known else scored
            )
    return PlanScore(
        epoch=measured.plan.epoch,
        at=at,
        seconds=seconds,
        load=load,
        types=tuple(types),
        options=tuple(_score_options(measured.plan, outcome, usage, devices)),
    )


def _score_rate(promised: TypeOutcome, measured: ServedType, seconds: float) -> TypeScore:
    rate = score_value(promised.throughput, measured.done / seconds)
    return TypeScore(promised.model, promised.kind, measured.done, rate)


def _with_latencies(
    scored: TypeScore, promised: TypeOutcome, measured: ServedType, goals: Mapping[str, float]
) -> TypeScore:
    p50 = _score_percentiles(measured, promised.median, 0.5, MIN_P50_REQUESTS)
    p99 = _score_percentiles(measured, promised.p99, 0.99, MIN_P99_REQUESTS)
    attained = {
        goal: score_value(promised.attained[goal], measured.figures[goal].share_within(limit))
        for goal, limit in goals.items()
        if goal in promised.attained and goal in measured.figures
    }
    return msgspec.structs.replace(scored, p50=p50, p99=p99, attained=attained)


def _score_percentiles(
    measured: ServedType, promised: Mapping[str, float], part: float, least: int
) -> dict[str, ScoredValue]:
    return {
        name: score_value(promised[name], figure.percentile(part))
        for name in FIGURES
        if name in promised and (figure := measured.figures.get(name)) is not None and figure.total >= least
    }


def _score_options(
    plan: Plan, outcome: SimulationOutcome, usage: Usage, devices: Mapping[str, ModelDevices]
) -> Iterator[OptionScore]:
    for each in outcome.options:
        found = usage.get((each.model, each.option))
        if found is not None:
            timed = base_option(plan.models[each.model], each.option)
            seconds = _score_seconds(timed, each, found, devices[each.model])
            yield OptionScore(each.model, each.option, found.jobs, score_value(each.busy, found.busy), seconds)


def _score_seconds(
    timed: str, promised: OptionOutcome, measured: MeasuredOption, devices: ModelDevices
) -> ScoredValue | None:
    """Score the seconds of an option that is a language model.

    The promise is the seconds of its passes and steps by the times of the option ``timed``. It is None if the option
    does not count them. In an executor with other components, passes and steps take longer because of sharing, which no
    curve contains.
    """
    batches, parts = measured.batches, promised.components
    counted = all(batches.get(part, BatchCounts()) != BatchCounts() for part in parts)
    if not counted or not all(devices.kinds[part] in LANGUAGE_KINDS for part in parts):
        return None
    promise = sum(devices.batch_seconds(timed, part, batches[part]) for part in parts)
    return score_value(promise, measured.busy * measured.seconds) if promise > 0 else None
