"""Measured seconds of executors as factors on the seconds of their options' profiles. Pure.

A score says for how much of their time executors were busy, and for how much a simulation of the same requests has
them: the ratio is what their seconds are off by. A language model is busy with one sequence as with sixteen, and one
that takes longer has larger batches instead of being busier. So its seconds are compared with what the profile says of
the very passes and steps that it made, where its engine counts them and nothing else runs beside it. Both hold where
the profile tells what requests alone take, so that it is known how an option batches. The ratio counts with the weight
``jobs / (jobs + 500)`` once there are 200 jobs, stays within a factor of 2, and below 5 % it is no finding.
"""

import math
from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING

from omnibus.cells import base_option
from omnibus.plan import Plan
from omnibus.plan_score import LearnedOption, LearnedSeconds, PlanScore
from omnibus.profile import ModelProfile, encode_profile

if TYPE_CHECKING:
    from services.planner.optimize.model_inputs import ModelInputs

#: Jobs of one score, and the part of their time that executors are busy, below which they teach nothing.
MIN_JOBS, MIN_BUSY = 200, 0.05
#: Jobs for which what was learned counts half, and as how many all earlier ones count at most.
HALF_WEIGHT_JOBS, MAX_JOBS = 500, 5000
#: Factors are within this and its inverse; one that differs from 1 by less is taken as 1.
MAX_FACTOR, MIN_DIFFERENCE = 2.0, 0.05


def profile_digest(profile: ModelProfile) -> str:
    """Name of what the profiler measured; 16 hex digits."""
    return blake2b(encode_profile(profile), digest_size=8).hexdigest()


def update_learned(
    known: LearnedSeconds | None, inputs: "ModelInputs", digest: str, score: PlanScore, plan: Plan
) -> LearnedSeconds:
    """Return what is known after ``score`` of a model with ``inputs``, whose factors the simulation used.

    ``digest`` is that of their profile. What was learned of another profile is forgotten. What the executors of all
    cells teach of an option counts together.
    """
    options = dict(known.options) if known is not None and known.profile == digest else {}
    served = _served_fraction(inputs.name, score)
    for each in score.options:
        if each.model != inputs.name:
            continue
        busy, option = each.busy, base_option(plan.models[each.model], each.option)
        learns = not _is_lent(plan, each.model, each.option)
        learns = learns and option in inputs.options and inputs.options[option].has_latencies
        if not learns or each.jobs < MIN_JOBS or min(busy.promised, busy.measured) < MIN_BUSY or not served > 0:
            continue
        told = each.seconds
        off = told.measured / told.promised if told is not None else busy.measured / busy.promised / served
        ratio = _bounded(_factor_of(inputs.learned, option) * off)
        options[option] = _add_finding(options.get(option), ratio, each.jobs)
    return LearnedSeconds(digest, options)


def applied_factors(learned: LearnedSeconds | None, digest: str) -> dict[str, LearnedOption]:
    """The factors to plan with, by option; none for a profile that is another one than ``digest``."""
    if learned is None or learned.profile != digest:
        return {}
    found = {}
    for option, each in learned.options.items():
        weight = each.jobs / (each.jobs + HALF_WEIGHT_JOBS)
        factor = _bounded(each.factor**weight)
        if abs(factor - 1.0) >= MIN_DIFFERENCE:
            found[option] = LearnedOption(factor, each.jobs)
    return found


def factors_differ(before: Mapping[str, LearnedOption], after: Mapping[str, LearnedOption]) -> bool:
    """Return whether factors differ by so much that plans should be made with the new ones."""
    return any(
        abs(_factor_of(after, name) / _factor_of(before, name) - 1.0) >= MIN_DIFFERENCE for name in {*before, *after}
    )


def _factor_of(factors: Mapping[str, LearnedOption], option: str) -> float:
    return factors[option].factor if option in factors else 1.0


def _served_fraction(model: str, score: PlanScore) -> float:
    """Return the part of what the simulation served of a model that was served: busy executors may serve less."""
    promised, measured = (
        sum(getattr(each.rate, side) for each in score.types if each.model == model)
        for side in ("promised", "measured")
    )
    return measured / promised if promised > 0 else 0.0


def _is_lent(plan: Plan, model: str, option: str) -> bool:
    """Return whether another model's requests go to the executors of an option as well."""
    return any(each.of == f"{model}/{option}" for other in plan.models.values() for each in other.options.values())


def _add_finding(known: LearnedOption | None, ratio: float, jobs: int) -> LearnedOption:
    """The geometric mean of all findings, by their jobs; the older ones count for less."""
    if known is None:
        return LearnedOption(ratio, min(jobs, MAX_JOBS))
    total = known.jobs + jobs
    mean = math.exp((known.jobs * math.log(known.factor) + jobs * math.log(ratio)) / total)
    return LearnedOption(mean, min(total, MAX_JOBS))


def _bounded(factor: float) -> float:
    return min(MAX_FACTOR, max(1 / MAX_FACTOR, factor))
