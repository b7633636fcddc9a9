"""A small any-to-text model with engines in virtual time.

Includes the profile that an exact profiler measures, and the executors' reports under load.
"""

import json
from collections.abc import Mapping
from typing import Any

from omnibus.bus.messages import ExecutorStatus, LoadCounts, LoadEvent
from omnibus.executor.sim import TypeDemand, decode_profile, predict_performance
from omnibus.plan import DeploymentOption, ModelPlan, Path, Plan
from omnibus.plan_score import PlanScore
from omnibus.profile import ModelProfile, OptionProfile, RoleCost, TypeProfile
from omnibus_planner.optimize.promise import PromiseChecker
from omnibus_planner.score.replay import replay_requests
from omnibus_planner.score.scoring import PlanMeasurement, Reports, score_plan
from omnibus_planner.simulate.arrivals import TypeRate, poisson_arrivals
from omnibus_planner.simulate.cluster import SimulatedModel
from omnibus_planner.simulate.devices import ModelDevices, simulated_devices
from omnibus_planner.simulate.run import PlanSimulation, SimulatedPlan
from omnibus_planner.simulate.saturate import RoleRate, saturated_rate
from tests.unit.planner.optimize import testbed
from tests.unit.planner.optimize.testbed import SEEN, TEXT

OPTIONS = {"E": ("vision",), "L": ("thinker",), "EL": ("vision", "thinker")}
TYPES = {
    SEEN: TypeProfile(("vision", "thinker"), 0.5, {"prompt_tokens": 340, "completion_tokens": 48, "image_tokens": 300}),
    TEXT: TypeProfile(("thinker",), 0.5, {"prompt_tokens": 68, "completion_tokens": 48}),
}
SECONDS = 120.0


def make_devices(thinker: float = 1.0) -> ModelDevices:
    """Return engines whose thinker takes ``thinker`` times as long."""
    parts: dict[str, Any] = {
        "vision": {"slots": 4, "batch": {"points": [[1, 0.12], [4, 0.36]]}, "tokens": {"image": 300}},
        "thinker": {
            "slots": 16,
            "batch": {"base": 0.004 * thinker, "per_token": 2e-5 * thinker},
            "step": {"base": 0.016 * thinker, "per_item": 2e-4 * thinker},
            "steps": {"mean": 48, "cv": 0.3, "most": 96},
        },
    }
    times = decode_profile(json.dumps({"seed": 1, "jitter": 0.05, "default": {"components": parts}}).encode())
    kinds = {"vision": "encode", "thinker": "think"}
    return simulated_devices(("vision", "thinker"), kinds, {"image": "vision"}, times)


def measured_profile() -> ModelProfile:
    """Return the seconds of full replicas and of single requests. The engines are as declared."""
    engines = make_devices()
    return testbed.make_profile({name: _measured_option(engines, name) for name in OPTIONS}, types=TYPES)


def _measured_option(engines: ModelDevices, name: str) -> OptionProfile:
    rows = []
    for kind, about in TYPES.items():
        role = tuple(part for part in OPTIONS[name] if part in about.components)
        if role:
            parts = frozenset(role)
            full = 1 / saturated_rate(engines, name, [RoleRate(parts, 1.0, about.quantities)])
            alone = {kind: TypeDemand(1.0, engines.role_loads(parts, about.quantities))}
            one = predict_performance(engines.times, name, alone, inflight=1, requests=5)
            rows.append(RoleCost(role, full, kind, 1 / one.throughput))
    return OptionProfile(OPTIONS[name], service="llm", gpu="H100", work=tuple(rows))


def make_plan(replicas: Mapping[str, int]) -> Plan:
    """Return a plan of ``L`` with an ``E``, or ``EL`` alone."""
    image_path = {"vision": "E", "thinker": "L"} if "L" in replicas else {"vision": "EL", "thinker": "EL"}
    paths = {SEEN: (Path("seen", image_path, 1.0),), TEXT: (Path("text", {"thinker": image_path["thinker"]}, 1.0),)}
    options = {name: DeploymentOption(OPTIONS[name], "llm", count, 1, gpu="H100") for name, count in replicas.items()}
    model = ModelPlan("qwen2_5_vl", "/q", ("vision", "thinker"), {"image": "vision"}, options, paths)
    return Plan(1, 0, 0.0, {"q": model})


def score_load(plan: Plan, engines: ModelDevices, checker: PromiseChecker, rate: float) -> PlanScore:
    """Return the score of ``SECONDS`` of ``rate`` req/s on ``engines``. The promise is that of ``checker``."""
    types = [TypeRate("q", kind, about.share * rate, about.quantities) for kind, about in TYPES.items()]
    run = PlanSimulation(SimulatedPlan({"q": SimulatedModel(plan.models["q"], engines)}), SECONDS, 0.0, 1)
    measurement, reports = PlanMeasurement(plan, 0.0, _make_reports(plan, run, 0.0)), dict[str, Any]()
    run.agenda.add(SECONDS, lambda at: reports.update(_make_reports(plan, run, at)))
    arrivals = list(poisson_arrivals(types, SECONDS))
    run.send_requests(arrivals)
    for second in range(int(SECONDS)):
        counts = {
            kind: sum(each.kind == kind and second <= each.at < second + 1 for each in arrivals) for kind in TYPES
        }
        event = {kind: LoadCounts(came=count) for kind, count in counts.items()}
        measurement.add_event(LoadEvent("g", 1, 1.0, 0, {"q": event}), second + 1.0)
    done_counts = {kind: run.seen.types["q", kind].ended for kind in TYPES}
    ended_loads = {
        kind: LoadCounts(
            done=done_counts[kind],
            quantities={name: done_counts[kind] * size for name, size in about.quantities.items()},
        )
        for kind, about in TYPES.items()
    }
    measurement.add_event(LoadEvent("g", 1, 0.0, 0, {"q": ended_loads}), SECONDS)
    outcome = replay_requests(checker, plan, measurement.arrivals({"q": 1}), SECONDS)
    return score_plan(
        measurement, outcome, measurement.option_usage(reports, SECONDS), SECONDS, 1.0, {"q"}, checker.devices
    )


def _make_reports(plan: Plan, run: PlanSimulation, at: float) -> Reports:
    """Return the reports of all executors at ``at``."""
    reports = {}
    ended_count = sum(each.ended for each in run.seen.types.values())
    for (model, option), pool in run.cluster.pools.items():
        for executor in pool:
            lanes = [each.lane for each in executor.lanes.values()]
            status = ExecutorStatus(
                executor.name, model, option, tuple(executor.lanes), (), "n", "ready", 64,
                origin=plan.models[model].option_origin(option),
                busy=tuple(lane.busy for lane in lanes),
                done=(ended_count // len(pool),) * len(lanes),
                batches=tuple(lane.batch_counts for lane in lanes),
            )  # fmt: skip
            reports[executor.name] = (status, at)
    return reports
