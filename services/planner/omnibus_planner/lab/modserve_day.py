"""ModServe's figure 16: GPUs for a day of the Azure trace with a burst of images.

Rates and images of each hour are read off the published plots of the Azure LMM trace of 2025, 2024-10-18 (Microsoft,
CC-BY 4.0). Sizes and gaps are those of ``workloads``.
"""

from functools import cache
from math import ceil
from typing import NamedTuple

from omnibus.plan import ModelPlan
from omnibus.profile import TypeProfile
from omnibus_planner.lab.experiment import Findings, PaperClaim, Plot, Table, Value
from omnibus_planner.lab.modserve import INTERNVL_26B, LLAMA, SIZES, ServedModel, build_model, run_system
from omnibus_planner.lab.modserve_load import BY_WORK, IN_TURN, MODSERVE, MONOLITH, PLANNED, meets_tail_goals
from omnibus_planner.lab.workloads import TrafficMix, usual_sizes
from omnibus_planner.lab.world import MODEL, LabModel


class TraceHour(NamedTuple):
    """Requests per minute of an hour, with text alone and with images.

    ``images`` is the mean number of images in one of the latter.
    """

    text: float
    image: float
    images: float


_DAY = tuple(TraceHour(*each) for each in (
    (113.5, 19.7, 2.2), (104.7, 32.9, 1.8), (102.7, 24.7, 1.9), (121.3, 26.3, 1.9), (103.0, 25.8, 2.0),
    (92.5, 23.0, 2.0), (90.2, 29.8, 2.0), (83.7, 25.7, 2.1), (93.1, 55.3, 2.6), (81.2, 34.3, 5.9), (71.3, 39.7, 7.6),
    (68.6, 36.5, 8.0), (67.7, 31.1, 7.4), (58.9, 35.4, 8.1), (55.7, 39.9, 7.4), (57.4, 45.4, 7.1), (56.8, 80.4, 5.5),
    (66.0, 86.4, 6.2), (55.2, 47.7, 5.6), (54.3, 41.7, 2.8), (56.6, 47.7, 2.6), (68.1, 41.2, 2.1), (73.1, 41.1, 2.2),
    (70.6, 37.7, 2.3),
))  # fmt: skip
#: Hours of the burst, in which requests have four images and more.
_BURST = range(9, 19)
#: GPUs of monoliths for the busiest hour without headroom: half of the paper's cluster.
_PEAK_GPUS, _MONOLITH_GPUS = 64, 4
#: Goals as a multiple of the time of a request alone.
_FACTOR = 40.0
#: Fractions of headroom to try until goals are met.
_HEADROOMS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
#: Requests of the simulation of an hour, and its shortest duration in seconds.
_REQUESTS, _MIN_SECONDS = 1000, 8.0
_OPTIONS = {MONOLITH: ("M",), MODSERVE: ("E", "S"), PLANNED: ("M", "E", "S")}
_POLICIES = {MONOLITH: "monolith", MODSERVE: "modserve", PLANNED: ""}


class HourPlan(NamedTuple):
    """GPUs of a plan by option; ``met`` is true if it meets the goals."""

    gpus: dict[str, int]
    met: bool

    @property
    def total(self) -> int:
        """All of its GPUs."""
        return sum(self.gpus.values())


def hour_model(served: ServedModel, hour: TraceHour) -> LabModel:
    """Return ``served`` with the request types of an hour."""
    share = hour.image / (hour.text + hour.image)
    types = {
        "image+thinker": TypeProfile(("image", "thinker"), share, dict(usual_sizes(served.sizes, round(hour.images)))),
        "thinker": TypeProfile(("thinker",), 1 - share, dict(usual_sizes(served.sizes, 0))),
    }
    return build_model(served).with_types(types)


@cache
def day_scale(served: ServedModel) -> float:
    """Return req/s per request a minute of the trace: the busiest hour fills the monoliths."""
    return min(
        hour_model(served, hour).plan(_PEAK_GPUS, policy="monolith", options=("M",)).capacity[MODEL]
        / (hour.text + hour.image)
        for hour in _DAY
    )


def plan_hour(served: ServedModel, model: LabModel, hour: TraceHour, system: str) -> HourPlan:
    """Return the first plan, by increasing headroom, with 99 % of requests in time."""
    rate = day_scale(served) * (hour.text + hour.image)
    mix = TrafficMix(rate, hour.image / (hour.text + hour.image), hour.images)
    gpus, found = 4 * _PEAK_GPUS, HourPlan({}, False)
    for headroom in _HEADROOMS:
        asked = {"goal": "gpus", "rate": rate, "headroom": headroom, "options": _OPTIONS[system]}
        plan = model.plan(gpus, policy=_POLICIES[system], **asked).models[MODEL]
        counts = {name: option.replicas * option.gpus for name, option in plan.options.items()}
        if counts == found.gpus:
            continue
        found = HourPlan(counts, _is_in_time(served, plan, system, mix))
        if found.met:
            break
    return found


def _is_in_time(served: ServedModel, plan: ModelPlan, system: str, mix: TrafficMix) -> bool:
    rules = IN_TURN if system == MONOLITH else BY_WORK
    run = run_system(served, plan, rules, mix, max(_MIN_SECONDS, ceil(_REQUESTS / mix.rate)))
    return meets_tail_goals(served, run, _FACTOR)


def compare_day() -> Findings:
    """Reproduce figure 16."""
    rows: list[tuple[Value, ...]] = []
    claims, plots, late = [], [], []
    for served, paper in ((LLAMA, "41.3 %"), (INTERNVL_26B, "25 %")):
        hours: dict[str, list[HourPlan]] = {system: [] for system in _OPTIONS}
        for hour in _DAY:
            model = hour_model(served, hour)
            for system, found in hours.items():
                found.append(plan_hour(served, model, hour, system))
        sums = {system: sum(each.total for each in found) for system, found in hours.items()}
        burst = {system: sum(found[at].total for at in _BURST) for system, found in hours.items()}
        rows += [_row(served.name, system, found) for system, found in hours.items()]
        late += [f"{served.name}, {system}: {missed}" for system, found in hours.items()
                 if (missed := sum(not each.met for each in found))]  # fmt: skip
        claims += [
            PaperClaim(f"{served.name}: fewer GPU-hours by ModServe's rule", paper, _less(sums, MODSERVE)),
            PaperClaim(f"{served.name}: in the hours of the burst", "-", _less(burst, MODSERVE)),
            PaperClaim(f"{served.name}: fewer GPU-hours by plans", "-", _less(sums, PLANNED)),
        ]
        plots.append(
            Plot(f"{served.name}: GPUs by hour", "hour of the day", "GPUs",
                 {system: tuple((float(at), float(each.total)) for at, each in enumerate(found))
                  for system, found in hours.items()})
        )  # fmt: skip
    return Findings(
        (
            "Llama 3.2 11B (CroAttn) and InternVL 2.5 26B (DecOnly) on A100 with the seconds of figure 14; M is a "
            "monolith on four GPUs, S text on four, E images on one",
            "Text, requests with images, and images of each hour of 2024-10-18, read off the published plots of the "
            f"Azure LMM trace; so many times as many that in the busiest hour {_PEAK_GPUS} GPUs of monoliths are full",
            SIZES,
            "Each hour is planned for its rate with 10 % to spare, and with more until the goals are met: of each "
            f"request type 99 % within {_FACTOR:g} times what one with an image, or none, takes alone. The paper does "
            "not say its multiple, and plans each five minutes; starts are not simulated",
        ),
        tuple(claims),
        (Table("GPU-hours of the day", ("model", "deployment", "GPU-hours", "most", "least", "most by option"),
               tuple(rows)),),
        tuple(plots),
        (f"Hours in which goals are missed with all that was tried: {'; '.join(late)}.",) if late else (),
    )  # fmt: skip


def _row(name: str, system: str, found: list[HourPlan]) -> tuple[Value, ...]:
    totals = [each.total for each in found]
    most = found[totals.index(max(totals))]
    return name, system, sum(totals), max(totals), min(totals), ", ".join(f"{n} {o}" for o, n in most.gpus.items())


def _less(sums: dict[str, int], system: str) -> str:
    return f"{1 - sums[system] / sums[MONOLITH]:.0%}"
