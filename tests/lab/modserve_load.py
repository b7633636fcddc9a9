"""ModServe's figures 15 and 17: the highest load in time, by GPUs and by goals.

All systems have the same goals, and all but the paper's baseline the same routing. The gain over that baseline is
attributed to routing, to the schedule, to the shape, and to the plan.
"""

from collections.abc import Iterable, Mapping
from functools import cache, partial
from math import inf

from omnibus.plan import ModelPlan
from omnibus_planner.simulate.arrivals import Arrival
from tests.lab.experiment import PLANNED, Findings, PaperClaim, Plot, Table, Value, margin_of, times
from tests.lab.modserve import order_remark
from tests.lab.modserve_model import (
    AZURE_LIKE,
    BY_WORK,
    CHOSEN,
    HORIZON_GOALS,
    IN_TURN,
    INTERNVL_26B,
    LEAST_RATE,
    LLAMA,
    REQUESTS,
    SIZES,
    Judged,
    LoadedSystem,
    ServedModel,
    build_model,
    most_load,
    tail_goals,
)
from tests.lab.workloads import TrafficMix, azure_like
from tests.lab.world import MODEL

#: GPUs of four, eight and sixteen of the paper's servers; figure 17 here uses the smallest cluster.
_GPUS = (32, 64, 128)
#: Goals as multiples of the time of a request alone, and the one of figure 15: that of figure 14.
FACTORS = (15.0, 20.0, 30.0, 40.0, 60.0)
FACTOR = 20.0
#: Systems by name: the paper's baseline, the same with our routing and schedule, its fixed ratio and its rule.
PAPERS_MONOLITH, MONOLITH, STAGED = "monolith in turn (the paper's)", "monolith", "monolith, scheduled"
FIXED, MODSERVE = "5 text : 12 image", "ModServe's rule"
#: Executors of figure 14 on 32 GPUs, whose ratio larger clusters keep.
_FIXED_REPLICAS, _FIXED_GPUS = {"S": 5, "E": 12}, 32


@cache
def build_baselines(vlm: ServedModel, gpus: int) -> dict[str, LoadedSystem]:
    """Return the systems that plans are compared with, each on ``gpus`` GPUs."""
    model = build_model(vlm)
    fixed_ratio = {option: count * gpus // _FIXED_GPUS for option, count in _FIXED_REPLICAS.items()}
    monolith = model.plan(gpus, policy="monolith", options=("M",)).models[MODEL]
    staged_plan = model.plan(gpus, policy="monolith", options=("MS",)).models[MODEL]
    return {
        PAPERS_MONOLITH: LoadedSystem(monolith, IN_TURN),
        MONOLITH: LoadedSystem(monolith, BY_WORK),
        STAGED: LoadedSystem(staged_plan, BY_WORK),
        FIXED: LoadedSystem(model.route(fixed_ratio).models[MODEL], BY_WORK),
        MODSERVE: LoadedSystem(model.plan(gpus, policy="modserve", options=("E", "S")).models[MODEL], BY_WORK),
    }


@cache
def plan_system(vlm: ServedModel, gpus: int, factor: float) -> LoadedSystem:
    """Return the planner's own plan for the goals.

    It is chosen by requests of another trace than the one that judges it.
    """
    result = build_model(vlm).plan(gpus, partial(_chosen_traffic, vlm), goals=tail_goals(vlm, factor))
    return LoadedSystem(result.models[MODEL], BY_WORK)


def _chosen_traffic(vlm: ServedModel, rate: float, seconds: float) -> Iterable[Arrival]:
    return azure_like(vlm.sizes, TrafficMix(rate), seconds, CHOSEN)


@cache
def measure_loads(vlm: ServedModel, gpus: int, factor: float) -> dict[str, float]:
    """Return the highest req/s in time of each system."""
    systems = {**build_baselines(vlm, gpus), PLANNED: plan_system(vlm, gpus, factor)}
    judge = Judged(tail_goals(vlm, factor))
    return {name: most_load(vlm, system, judge) for name, system in systems.items()}


def _ratio(rates: Mapping[str, float], name: str, over: str) -> str:
    return times(rates[name] / rates[over]) if rates[over] else f"{rates[name]:.3g} req/s, {over} none"


def _attribution(rates: Mapping[str, float]) -> str:
    """Format the gain of each step from the paper's monolith to the plan."""
    shaped = max((FIXED, MODSERVE), key=lambda name: rates[name])
    steps = {"routing": (PAPERS_MONOLITH, MONOLITH), "schedule": (MONOLITH, STAGED), "shape": (STAGED, shaped),
             "plan": (shaped, PLANNED)}  # fmt: skip
    return ", ".join(f"{name} {_ratio(rates, after, before)}" for name, (before, after) in steps.items())


def _plot(vlm: ServedModel, x: str, lines: Mapping[str, list[tuple[float, float]]]) -> Plot:
    return Plot(f"{vlm.name}: the most load in time", x, "req/s", {name: tuple(at) for name, at in lines.items()})


def describe_shape(plan: ModelPlan) -> str:
    """Return replicas and options in words."""
    return " + ".join(f"{option.replicas} {name}" for name, option in plan.options.items())


_CONDITIONS = (
    "Llama 3.2 11B (CroAttn) and InternVL 2.5 26B (DecOnly) on A100 with the seconds of figure 14. M is a monolith on "
    "four GPUs, and MS one with the schedule that follows goals. S is text with that schedule on four GPUs, and E "
    "images on one",
    AZURE_LIKE,
    SIZES,
    "Goals: 99 % of each request type have their first token and their mean time between tokens within a multiple of "
    "the times of a request alone on the monolith, with one image or none. All systems have these goals",
    "Routing: all systems by outstanding work and item by item, as gateways route. The paper's baseline, in turn, has "
    "a separate row",
    f"Each rate lasts {HORIZON_GOALS} times the longest goal and {REQUESTS} requests at least, after a tenth of the "
    "time for warm-up. Plans are chosen on the requests of one seed (2), and all systems judged on those of another "
    "(1)",
)


def compare_loads() -> Findings:
    """Reproduce figure 15."""
    rows: list[tuple[Value, ...]] = []
    plots, claims, margins = [], [], []
    gains: list[float] = []
    for vlm, paper in ((LLAMA, "3.3x"), (INTERNVL_26B, "5.5x")):
        lines: dict[str, list[tuple[float, float]]] = {}
        for gpus in _GPUS:
            rates = measure_loads(vlm, gpus, FACTOR)
            systems = {**build_baselines(vlm, gpus), PLANNED: plan_system(vlm, gpus, FACTOR)}
            for name, system in systems.items():
                lines.setdefault(name, []).append((float(gpus), rates[name]))
                rows.append((vlm.name, gpus, name, describe_shape(system.plan), rates[name]))
            margins.append(margin_of(f"{vlm.name}, {gpus} GPUs", rates))
        gains.append(rates[FIXED] / rates[PAPERS_MONOLITH] if rates[PAPERS_MONOLITH] else inf)
        claims += [
            PaperClaim(f"{vlm.name}: {_GPUS[-1]} GPUs, {what}", figure, ours)
            for what, figure, ours in (
                ("ModServe's ratio over the paper's monolith", paper, _ratio(rates, FIXED, PAPERS_MONOLITH)),
                ("ModServe's rule over monolith, both routed by work", "-", _ratio(rates, MODSERVE, MONOLITH)),
                ("planned over monolith, both routed by work", "-", _ratio(rates, PLANNED, MONOLITH)),
                ("gain by step", "-", _attribution(rates)),
            )
        ]
        plots.append(_plot(vlm, "GPUs", lines))
    return Findings(
        (*_CONDITIONS, f"The multiple is {FACTOR:g}; the paper does not say its own (figure 17 has others)"),
        tuple(claims),
        (Table("The most load in time", ("model", "GPUs", "deployment", "executors", "req/s"), tuple(rows)),),
        tuple(plots), order_remark(*gains), tuple(margins),
    )  # fmt: skip


def compare_goals() -> Findings:
    """Reproduce figure 17."""
    rows: list[tuple[Value, ...]] = []
    plots, claims, margins = [], [], []
    gains: list[float] = []
    names = (PAPERS_MONOLITH, MONOLITH, STAGED, FIXED, MODSERVE, PLANNED)
    for vlm, paper in ((LLAMA, "4.3x"), (INTERNVL_26B, "6.8x")):
        by_factor = {factor: measure_loads(vlm, _GPUS[0], factor) for factor in FACTORS}
        for factor, rates in by_factor.items():
            shape = describe_shape(plan_system(vlm, _GPUS[0], factor).plan)
            rows.append((vlm.name, f"{factor:g}x", *(rates[name] for name in names), shape))
            margins.append(margin_of(f"{vlm.name}, {factor:g}x", rates))
        lines = {name: [(factor, rates[name]) for factor, rates in by_factor.items()] for name in names}
        both_serve = [rates for rates in by_factor.values() if rates[PAPERS_MONOLITH]]
        gains.append(max((each[MODSERVE] / each[PAPERS_MONOLITH] for each in both_serve), default=inf))
        claims += [
            PaperClaim(f"{vlm.name}: ModServe's rule over the paper's monolith, at most", f"up to {paper}",
                       times(gains[-1])),
            *(
                PaperClaim(f"{vlm.name}: {name} over monolith, both routed by work, by goals", "-",
                           ", ".join(_ratio(rates, name, MONOLITH) for rates in by_factor.values()))
                for name in (MODSERVE, PLANNED)
            ),
        ]  # fmt: skip
        plots.append(_plot(vlm, "multiple of a request alone", lines))
    return Findings(
        (*_CONDITIONS, f"{_GPUS[0]} GPUs; 0 where not even {LEAST_RATE:g} req/s are served in time"), tuple(claims),
        (Table("The most req/s in time", ("model", "goals", *names, "planned executors"), tuple(rows)),),
        tuple(plots), order_remark(*gains), tuple(margins),
    )  # fmt: skip
