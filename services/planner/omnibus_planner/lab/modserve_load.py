"""ModServe's figures 15 and 17: the highest load in time, by GPUs and by goals."""

from collections.abc import Mapping
from functools import cache
from math import inf
from typing import NamedTuple

from omnibus.plan import ModelPlan
from omnibus_planner.lab.experiment import Findings, PaperClaim, Plot, Table, Value, times
from omnibus_planner.lab.modserve import (
    AZURE_LIKE,
    INTERNVL_26B,
    LLAMA,
    SIZES,
    ServedModel,
    build_model,
    isolated_seconds,
    order_remark,
    run_system,
)
from omnibus_planner.lab.workloads import TrafficMix
from omnibus_planner.lab.world import MODEL
from omnibus_planner.simulate.cluster import RoutingRules
from omnibus_planner.simulate.outcome import SimulationOutcome

#: GPUs of four, eight and sixteen of the paper's servers; figure 17 here uses the smallest cluster.
_GPUS = (32, 64, 128)
#: Goals as multiples of the time of a request alone, and the one of figure 15: that of figure 14.
FACTORS = (15.0, 20.0, 30.0, 40.0, 60.0)
FACTOR = 20.0
#: Requests of a 99th percentile, and shortest and longest load in seconds.
_REQUESTS, _MIN_SECONDS, _MAX_SECONDS = 1500, 8.0, 240.0
#: Relative precision of the highest load, and the smallest load to try, in req/s.
_PRECISION, _LEAST_RATE = 0.05, 0.1
MONOLITH, MODSERVE, PLANNED = "monolith", "ModServe's rule", "planned"
#: Executors of figure 14 on 32 GPUs, whose ratio larger clusters keep.
_FIXED, _FIXED_REPLICAS, _FIXED_GPUS = "5 text : 12 image", {"S": 5, "E": 12}, 32
#: Monoliths get requests in turn, as in the paper's baseline; others follow its section 4.3.
IN_TURN, BY_WORK = RoutingRules(spread_items=False, least_work=False), RoutingRules()


class LoadedSystem(NamedTuple):
    """A deployment, and the routing of its requests."""

    plan: ModelPlan
    rules: RoutingRules


@cache
def build_systems(served: ServedModel, gpus: int) -> dict[str, LoadedSystem]:
    """Return the systems to compare, each on ``gpus`` GPUs.

    They are the paper's baseline, its rule and its fixed ratio, and the planner's own plan.
    """
    model = build_model(served)
    fixed = {option: count * gpus // _FIXED_GPUS for option, count in _FIXED_REPLICAS.items()}
    results = {
        MONOLITH: model.plan(gpus, policy="monolith", options=("M",)),
        _FIXED: model.route(fixed),
        MODSERVE: model.plan(gpus, policy="modserve", options=("E", "S")),
        PLANNED: model.plan(gpus),
    }
    return {
        name: LoadedSystem(result.models[MODEL], IN_TURN if name == MONOLITH else BY_WORK)
        for name, result in results.items()
    }


def meets_tail_goals(served: ServedModel, run: SimulationOutcome, factor: float) -> bool:
    """Return True if 99 % of each type meet their goals.

    The goals are for first tokens and for times between tokens. The limit is ``factor`` times the time of a request
    alone on the monolith, with one image or none.
    """
    alone = isolated_seconds(served)
    return all(
        each.p99.get("first_token", 0.0) <= factor * alone[each.kind]
        and each.p99.get("token", 0.0) <= factor * served.step
        for each in run.types
    )


def most_load(served: ServedModel, system: LoadedSystem, factor: float) -> float:
    """Return the highest req/s that ``system`` serves in time.

    It is 0 below ``_LEAST_RATE``.
    """

    def keeps_up(rate: float) -> bool:
        seconds = min(_MAX_SECONDS, max(_MIN_SECONDS, _REQUESTS / rate))
        run = run_system(served, system.plan, system.rules, TrafficMix(rate), seconds)
        return meets_tail_goals(served, run, factor)

    low, high = 0.0, _LEAST_RATE
    while keeps_up(high):
        low, high = high, 4 * high if high < 1 else 2 * high
    while low and high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if keeps_up(middle) else (low, middle)
    return low


def _gain(found: Mapping[str, float], name: str) -> float:
    return found[name] / found[MONOLITH] if found[MONOLITH] else inf


def _ratio(found: Mapping[str, float], name: str) -> str:
    """Format ``name`` over the monolith."""
    return times(found[name] / found[MONOLITH]) if found[MONOLITH] else f"{found[name]:.3g} req/s, the monolith none"


def _plot(served: ServedModel, x: str, lines: Mapping[str, list[tuple[float, float]]]) -> Plot:
    return Plot(f"{served.name}: the most load in time", x, "req/s", {name: tuple(at) for name, at in lines.items()})


def _shape(plan: ModelPlan) -> str:
    return " + ".join(f"{option.replicas} {name}" for name, option in plan.options.items())


_CONDITIONS = (
    "Llama 3.2 11B (CroAttn) and InternVL 2.5 26B (DecOnly) on A100 with the seconds of figure 14; M is a monolith on "
    "four GPUs, S text with the schedule that follows goals on four, E images on one",
    AZURE_LIKE,
    SIZES,
    "Goals: of each request type the 99th percentiles of first tokens, and of times between tokens, within a multiple "
    "of what a request, with one image or none, takes alone on the monolith; each rate is tried with 1,500 requests, "
    "or for four minutes",
)


def compare_loads() -> Findings:
    """Reproduce figure 15."""
    rows: list[tuple[Value, ...]] = []
    plots, claims = [], []
    gains: list[float] = []
    for served, paper in ((LLAMA, "3.3x"), (INTERNVL_26B, "5.5x")):
        lines: dict[str, list[tuple[float, float]]] = {}
        for gpus in _GPUS:
            found = {}
            for name, system in build_systems(served, gpus).items():
                found[name] = most_load(served, system, FACTOR)
                lines.setdefault(name, []).append((float(gpus), found[name]))
                rows.append((served.name, gpus, name, _shape(system.plan), found[name]))
        gains.append(_gain(found, _FIXED))
        claims += [
            PaperClaim(f"{served.name}: {_GPUS[-1]} GPUs, {what} over monolith", figure, _ratio(found, name))
            for what, figure, name in (
                ("ModServe's ratio", paper, _FIXED), ("ModServe's rule", "-", MODSERVE), ("planned", "-", PLANNED)
            )
        ]  # fmt: skip
        plots.append(_plot(served, "GPUs", lines))
    return Findings(
        (*_CONDITIONS, f"The multiple is {FACTOR:g}; the paper does not say its own (figure 17 has others)"),
        tuple(claims),
        (Table("The most load in time", ("model", "GPUs", "deployment", "executors", "req/s"), tuple(rows)),),
        tuple(plots), order_remark(*gains),
    )  # fmt: skip


def compare_goals() -> Findings:
    """Reproduce figure 17."""
    rows: list[tuple[Value, ...]] = []
    plots, claims = [], []
    gains: list[float] = []
    for served, paper in ((LLAMA, "4.3x"), (INTERNVL_26B, "6.8x")):
        systems = {name: each for name, each in build_systems(served, _GPUS[0]).items() if name != _FIXED}
        lines: dict[str, list[tuple[float, float]]] = {name: [] for name in systems}
        ratios = []
        for factor in FACTORS:
            found = {name: most_load(served, system, factor) for name, system in systems.items()}
            rows.append((served.name, f"{factor:g}x", *found.values()))
            for name, rate in found.items():
                lines[name].append((factor, rate))
            if found[MONOLITH]:
                ratios.append((found[MODSERVE] / found[MONOLITH], found[PLANNED] / found[MONOLITH]))
        most, most_planned = (max(column) for column in zip(*ratios, strict=True))
        gains.append(most)
        claims += [
            PaperClaim(f"{served.name}: ModServe's rule over monolith, at most", f"up to {paper}", times(most)),
            PaperClaim(f"{served.name}: with the loosest goals", "-", times(ratios[-1][0])),
            PaperClaim(f"{served.name}: planned over monolith, at most", "-", times(most_planned)),
        ]
        plots.append(_plot(served, "multiple of a request alone", lines))
    return Findings(
        (*_CONDITIONS, f"{_GPUS[0]} GPUs; 0 where not even {_LEAST_RATE:g} req/s are served in time"), tuple(claims),
        (Table("The most req/s in time", ("model", "goals", MONOLITH, MODSERVE, PLANNED), tuple(rows)),),
        tuple(plots), order_remark(*gains),
    )  # fmt: skip
