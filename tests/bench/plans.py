"""Plans against simulated engines, in virtual time: ``python -m tests.bench.plans``.

The benchmark does not wait, and draws random numbers by seed, so only CPU times differ between runs. The planner has an
accurate profile of an any-to-any model (``tests/unit/planner/simulate/omni.py``) on 16 GPUs. Its predictions are
compared with the engines that the profile describes.

    plan.measured_over_promised.*  the rate that engines serve over the rate of the plan, by mix of request types;
                                   with a load, 80 or 130, those served in time over those of the promised curve
    plan.goodput_200_over_max.*    requests served in time at twice the promise, over the most at any load of the curve;
                                   with a goal of 3 s for the whole answer as *.goal.* (other promises: *.goal.*.80, 130)
    plan.adapted_over_static       rate of a mix under its own plan over that under the plan of the declared mix: the least
    plan.rebuild_over_learn        CPU time until a planner that is rebuilt could plan with a learned factor, over that
                                   until a running one has applied it
    whatif.p99_error               99th percentiles of answers by the profile, against those of the engines: the largest
    whatif.first_token_error       the same of medians of first tokens
    whatif.cpu_over_real_time      CPU time of simulating an hour of traffic, over that hour
    day.gpu_hours_over_monolith    GPU-hours of plans for a day whose rate and images change, over those of as many replicas
                                   with everything on one GPU as have no larger 99th percentile
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence

from omnibus.plan import ModelPlan
from omnibus.plan_goals import ModelGoals
from omnibus.plan_score import LearnedOption
from omnibus.profile import ModelProfile
from omnibus_planner.declared.planned_spec import TailLatencyGoals
from omnibus_planner.optimize import ModelLoad
from omnibus_planner.optimize.promise import PromiseChecker
from omnibus_planner.optimize.result import PlanningResult
from omnibus_planner.simulate.arrivals import TypeRate, even_arrivals, poisson_arrivals
from omnibus_planner.simulate.calibrate import forget_calibrations
from omnibus_planner.simulate.cluster import SimulatedModel
from omnibus_planner.simulate.devices import ModelDevices
from omnibus_planner.simulate.outcome import SimulationOutcome
from omnibus_planner.simulate.run import SimulatedPlan, simulate_plan
from tests.unit.planner.simulate.omni import TYPES, make_omni_plan, make_omni_planner, measured_profile, true_devices

MODEL, DECLARED = "omni", "declared"
#: Shares of the request types: image, spoken question, text, spoken answer.
MIXES = {
    DECLARED: tuple(about.share for about in TYPES.values()),
    "speech_heavy": (0.15, 0.45, 0.1, 0.3),
    "image_heavy": (0.8, 0.05, 0.1, 0.05),
    "text_only": (0.0, 0.0, 1.0, 0.0),
    "images_only": (1.0, 0.0, 0.0, 0.0),
    "questions_only": (0.0, 1.0, 0.0, 0.0),
    "speech_only": (0.0, 0.0, 0.0, 1.0),
    "even": (0.25, 0.25, 0.25, 0.25),
    "voice": (0.0, 0.5, 0.0, 0.5),
    "images_and_text": (0.5, 0.0, 0.5, 0.0),
    "few_images": (0.1, 0.0, 0.9, 0.0),
    "text_and_speech": (0.0, 0.0, 0.6, 0.4),
}
#: Mixes whose latencies are compared, and that are planned with goals.
LATENCY_MIXES = (DECLARED, "speech_heavy", "image_heavy", "text_only")
#: CPU seconds in which a plan is solved and simulated again; virtual seconds of a throughput, and of latencies.
PLAN_SECONDS, STEADY_SECONDS, LATENCY_SECONDS = 60.0, 60.0, 120.0
#: Requests of the rarest type at least by which latencies are compared: medians of fewer differ by chance.
MIN_REQUESTS = 500
#: Parts of what a plan serves at which latencies are compared.
LOADS = (0.4, 0.7)
#: Requests of a simulation beyond the promise: queues fill up.
OVERLOAD_REQUESTS = 4000
#: The goal of plans with one, and the seconds for which planners simulate by default.
GOALS, GOAL_PLAN_SECONDS = TailLatencyGoals(done=3.0), 5.0
HOUR_SECONDS, HOUR_RATE = 3600.0, 8.0
#: A day in six parts: req/s of each, and its mix; images come in a burst in the morning.
DAY = ((14.0, DECLARED), (12.0, DECLARED), (30.0, "image_heavy"), (34.0, DECLARED), (30.0, DECLARED), (22.0, DECLARED))
DAY_GPUS, MAX_MONOLITHS_FACTOR = 64, 3


def type_rates(mix: str, rate: float) -> list[TypeRate]:
    return [
        TypeRate(MODEL, kind, share * rate, about.quantities)
        for (kind, about), share in zip(TYPES.items(), MIXES[mix], strict=True)
        if share
    ]


def mix_load(mix: str, rate: float = 1.0) -> dict[str, ModelLoad]:
    return {MODEL: ModelLoad(rate, dict(zip(TYPES, MIXES[mix], strict=True)))}


def served_rate(plan: ModelPlan, mix: str, rate: float, devices: ModelDevices) -> float:
    """Requests/s of ``mix`` that saturate ``plan``, which is made for ``rate``."""
    simulation = SimulatedPlan({MODEL: SimulatedModel(plan, devices)})
    outcome = simulate_plan(simulation, even_arrivals(type_rates(mix, rate), STEADY_SECONDS), STEADY_SECONDS)
    return outcome.breaks.rate if outcome.breaks else 0.0


def simulate_latencies(plan: ModelPlan, mix: str, rate: float, devices: ModelDevices) -> SimulationOutcome:
    simulation, rates = SimulatedPlan({MODEL: SimulatedModel(plan, devices)}), type_rates(mix, rate)
    seconds = max(LATENCY_SECONDS, MIN_REQUESTS / min(each.rate for each in rates))
    return simulate_plan(simulation, poisson_arrivals(rates, seconds), seconds)


def measure_promises(plans: Mapping[str, PlanningResult], engines: ModelDevices) -> dict[str, float]:
    promises = {mix: plan.capacity[MODEL] for mix, plan in plans.items()}
    rates = {mix: served_rate(plan.models[MODEL], mix, promises[mix], engines) for mix, plan in plans.items()}
    static = {
        mix: served_rate(plans[DECLARED].models[MODEL], mix, promises[mix], engines) for mix in plans if mix != DECLARED
    }
    return {
        **{f"plan.measured_over_promised.{mix}": rates[mix] / promises[mix] for mix in plans},
        "plan.adapted_over_static": min(rates[mix] / static[mix] for mix in static),
    }


def measure_curves(
    plans: Mapping[str, PlanningResult], engines: ModelDevices, goals: ModelGoals | None = None
) -> dict[str, float]:
    """Compare the curves of plans, made for ``goals`` or none, with the engines at the same loads."""
    values, label = {}, "" if goals is None else "goal."
    for mix, plan in plans.items():
        served, promised = {}, {}
        for point in plan.explain["planned"]["models"][MODEL]["promise"]["curve"]:
            load = round(100 * point["load"])
            model = SimulatedModel(plan.models[MODEL], engines)
            simulation = SimulatedPlan({MODEL: model}, {} if goals is None else {MODEL: goals})
            seconds = OVERLOAD_REQUESTS / point["offered"]
            arrivals = even_arrivals(type_rates(mix, point["offered"]), seconds)
            served[load] = simulate_plan(simulation, arrivals, seconds, warm_up=0.3).goodput
            promised[load] = point["goodput"]
        values |= {
            f"plan.measured_over_promised.{label}{mix}.{load}": served[load] / promised[load] for load in (80, 130)
        }
        values[f"plan.goodput_200_over_max.{label}{mix}"] = served[200] / max(served.values())
    return values


def measure_goals(
    profile: ModelProfile, engines: ModelDevices, mixes: Iterable[str] = LATENCY_MIXES
) -> dict[str, float]:
    """Compare the curves of plans for ``GOALS`` with the engines."""
    plans = {
        mix: PromiseChecker(make_omni_planner(profile, goals=GOALS)).plan(mix_load(mix), within=GOAL_PLAN_SECONDS)
        for mix in mixes
    }
    return measure_curves(plans, engines, GOALS.of_model())


def measure_learning(profile: ModelProfile, checker: PromiseChecker) -> float:
    """CPU time to build a planner with a learned factor.

    The result is relative to the time until a running planner has applied the factor.
    """
    factors = {MODEL: {"Th": LearnedOption(1.3, 900)}}
    began = time.process_time()
    checker.apply_learned(factors)
    _ = checker.devices
    learn_seconds = time.process_time() - began
    forget_calibrations()  # a planner that starts knows none
    began = time.process_time()
    fresh = PromiseChecker(make_omni_planner(profile))
    fresh.apply_learned(factors)
    _ = fresh.devices
    build_seconds = time.process_time() - began
    checker.apply_learned({})
    return build_seconds / max(learn_seconds, 1e-6)


def measure_errors(
    plans: Mapping[str, PlanningResult], engines: ModelDevices, profile_devices: ModelDevices
) -> dict[str, float]:
    """Largest errors of the profile's predicted times, by request type."""
    tails, firsts = [], []
    for mix, plan in plans.items():
        for load in LOADS:
            rate = load * plan.capacity[MODEL]
            truth, prediction = (
                simulate_latencies(plan.models[MODEL], mix, rate, each) for each in (engines, profile_devices)
            )
            for true, each in zip(truth.types, prediction.types, strict=True):
                tails.append(abs(each.p99["done"] / true.p99["done"] - 1.0))
                firsts.append(abs(each.median["first_token"] / true.median["first_token"] - 1.0))
    return {"whatif.p99_error": max(tails), "whatif.first_token_error": max(firsts)}


def measure_hour(plan: ModelPlan, profile_devices: ModelDevices) -> float:
    simulation = SimulatedPlan({MODEL: SimulatedModel(plan, profile_devices)})
    began = time.process_time()
    simulate_plan(simulation, poisson_arrivals(type_rates(DECLARED, HOUR_RATE), HOUR_SECONDS), HOUR_SECONDS)
    return (time.process_time() - began) / HOUR_SECONDS


def worst_tail(outcome: SimulationOutcome) -> float:
    return outcome.percentiles["done"]["0.99"]


def count_monoliths(mix: str, rate: float, tail: float, most: int, engines: ModelDevices) -> int:
    """Fewest monolithic replicas whose 99th percentile is at most ``tail``; ``most`` if none qualify."""
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        parts = {kind: dict.fromkeys(about.components, "M") for kind, about in TYPES.items()}
        outcome = simulate_latencies(make_omni_plan({"M": middle}, parts), mix, rate, engines)
        refusal_count = sum(each.refused for each in outcome.types)
        low, high = (low, middle) if not refusal_count and worst_tail(outcome) <= tail else (middle, high)
    return high


def gpu_count(plan: ModelPlan) -> int:
    return sum(option.replicas * option.gpus for option in plan.options.values())


def measure_day(profile: ModelProfile, engines: ModelDevices, day: Sequence[tuple[float, str]]) -> float:
    planned_gpus = monoliths = 0
    for rate, mix in day:
        checker = PromiseChecker(make_omni_planner(profile, DAY_GPUS, goal="gpus", rate=rate, headroom=0.1))
        plan = checker.plan(mix_load(mix, rate), within=PLAN_SECONDS).models[MODEL]
        gpus = gpu_count(plan)
        tail = worst_tail(simulate_latencies(plan, mix, rate, engines))
        planned_gpus += gpus
        monoliths += count_monoliths(mix, rate, tail, MAX_MONOLITHS_FACTOR * gpus, engines)
    return planned_gpus / monoliths


def measure_plans() -> dict[str, float]:
    profile, engines = measured_profile(), true_devices()
    checkers = {mix: PromiseChecker(make_omni_planner(profile)) for mix in MIXES}
    plans = {mix: checker.plan(mix_load(mix), within=PLAN_SECONDS) for mix, checker in checkers.items()}
    profile_devices = checkers[DECLARED].devices[MODEL]
    values = {
        **measure_promises(plans, engines),
        **measure_curves(plans, engines),
        **measure_goals(profile, engines),
        "plan.rebuild_over_learn": measure_learning(profile, checkers[DECLARED]),
        **measure_errors({mix: plans[mix] for mix in LATENCY_MIXES}, engines, profile_devices),
        "whatif.cpu_over_real_time": measure_hour(plans[DECLARED].models[MODEL], profile_devices),
        "day.gpu_hours_over_monolith": measure_day(profile, engines, DAY),
    }
    return {name: round(value, 6) for name, value in values.items()}


if __name__ == "__main__":
    print(json.dumps(measure_plans()))
