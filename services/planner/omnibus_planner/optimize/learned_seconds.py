"""Measured seconds of executors as factors on their options' profiles. Pure.

A score contains the utilisation of executors, and the utilisation in a simulation of the same requests. Their ratio is
the error of the profile's seconds. But a language model is as busy with one sequence as with sixteen. A slower model
has larger batches instead of a higher utilisation. So its seconds are compared with the profile's seconds for the very
passes and steps that it made. This requires that its engine counts them and that no other component runs in it. Both
methods require a profile with the seconds of requests alone, which show how an option batches.

A ratio counts from 200 jobs, with the weight ``jobs / (jobs + 500)``. It is limited to a factor of 2, and differences
below 5 % are ignored.
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
    from omnibus_planner.optimize.model_inputs import ModelInputs

#: Fewest jobs of one score, and lowest utilisation of executors, for a score to count.
MIN_JOBS, MIN_BUSY = 200, 0.05
#: Jobs at which a learned factor counts half, and the most jobs that all earlier ones together count as.
HALF_WEIGHT_JOBS, MAX_JOBS = 500, 5000
#: Factors are limited to this and its inverse; one that differs from 1 by less than the second counts as 1.
MAX_FACTOR, MIN_DIFFERENCE = 2.0, 0.05


def profile_digest(profile: ModelProfile) -> str:
    """Return a digest of the profiler's measurements; 16 hex digits."""
    return blake2b(encode_profile(profile), digest_size=8).hexdigest()


def update_learned(
    known: LearnedSeconds | None, inputs: "ModelInputs", digest: str, score: PlanScore, plan: Plan
) -> LearnedSeconds:
    """Return the learned factors after ``score`` of one model.

    ``inputs`` are those of the model, and the simulation used their factors. ``digest`` identifies their profile;
    factors for another profile are discarded. The executors of all cells count together for an option.
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
    """Return the factors to plan with, by option; none if they belong to another profile than ``digest``."""
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
    """Return True if factors differ enough to plan with the new ones."""
    return any(
        abs(_factor_of(after, name) / _factor_of(before, name) - 1.0) >= MIN_DIFFERENCE for name in {*before, *after}
    )


def _factor_of(factors: Mapping[str, LearnedOption], option: str) -> float:
    return factors[option].factor if option in factors else 1.0


def _served_fraction(model: str, score: PlanScore) -> float:
    """Return the served fraction of the simulated rate: busy executors may serve less."""
    promised, measured = (
        sum(getattr(each.rate, side) for each in score.types if each.model == model)
        for side in ("promised", "measured")
    )
    return measured / promised if promised > 0 else 0.0


def _is_lent(plan: Plan, model: str, option: str) -> bool:
    """Return True if another model's requests use the option's executors too."""
    return any(each.of == f"{model}/{option}" for other in plan.models.values() for each in other.options.values())


def _add_finding(known: LearnedOption | None, ratio: float, jobs: int) -> LearnedOption:
    """Return the geometric mean of all ratios, weighted by their jobs; older ones count for less."""
    if known is None:
        return LearnedOption(ratio, min(jobs, MAX_JOBS))
    total = known.jobs + jobs
    mean = math.exp((known.jobs * math.log(known.factor) + jobs * math.log(ratio)) / total)
    return LearnedOption(mean, min(total, MAX_JOBS))


def _bounded(factor: float) -> float:
    return min(MAX_FACTOR, max(1 / MAX_FACTOR, factor))
