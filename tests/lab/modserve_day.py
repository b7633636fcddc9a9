"""ModServe's figure 16: GPUs for a day of the Azure trace with a burst of images.

Rates and images of each hour are read off the published plots of the Azure LMM trace of 2025, 2024-10-18 (Microsoft,
CC-BY 4.0). Sizes and gaps are those of ``workloads``.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from omnibus.profile import TypeProfile
from tests.lab.experiment import PLANNED, Findings, Margin, PaperClaim, Plot, Table, Value
from tests.lab.modserve_load import MODSERVE, MONOLITH
from tests.lab.modserve_model import (
    BY_WORK,
    CHOSEN,
    HORIZON_GOALS,
    INTERNVL_26B,
    LLAMA,
    REQUESTS,
    SIZES,
    Judged,
    LoadedSystem,
    ServedModel,
    build_model,
    is_in_time,
    tail_goals,
)
from tests.lab.workloads import TrafficMix, usual_sizes
from tests.lab.world import MODEL, LabModel


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
#: Deployments that a system may choose for an hour, by policy and options. The planner compares its best over all
#: options with its best over fewer.
_CHOICES = {
    MONOLITH: (("monolith", ("M",)), ("monolith", ("MS",))),
    MODSERVE: (("modserve", ("E", "S")),),
    PLANNED: (("", ("M", "MS", "E", "L", "S")), ("", ("E", "S")), ("", ("E", "L")), ("", ("M",)), ("", ("MS",))),
}


class HourPlan(NamedTuple):
    """A plan, and its GPUs by option; ``met`` is true if it meets the goals."""

    system: LoadedSystem
    gpus: dict[str, int]
    met: bool = False

    @property
    def total(self) -> int:
        """All of its GPUs."""
        return sum(self.gpus.values())


def hour_model(vlm: ServedModel, hour: TraceHour) -> LabModel:
    """Return ``served`` with the request types of an hour."""
    share = hour.image / (hour.text + hour.image)
    types = {
        "image+thinker": TypeProfile(("image", "thinker"), share, dict(usual_sizes(vlm.sizes, round(hour.images)))),
        "thinker": TypeProfile(("thinker",), 1 - share, dict(usual_sizes(vlm.sizes, 0))),
    }
    return build_model(vlm).with_types(types)


@cache
def day_scale(vlm: ServedModel) -> float:
    """Return req/s per request a minute of the trace: the busiest hour fills the monoliths."""
    return min(
        hour_model(vlm, hour).plan(_PEAK_GPUS, policy="monolith", options=("M",)).capacity[MODEL]
        / (hour.text + hour.image)
        for hour in _DAY
    )


def plan_hour(vlm: ServedModel, model: LabModel, hour: TraceHour, system: str) -> HourPlan:
    """Return the plan with the fewest GPUs that meets the goals of 99 % of requests.

    Plans are tried by increasing headroom on requests of one trace, which replaces the planner's own simulation.
    ``met`` is judged by the requests of another.
    """
    rate = day_scale(vlm) * (hour.text + hour.image)
    mix = TrafficMix(rate, hour.image / (hour.text + hour.image), hour.images)
    goals = tail_goals(vlm, _FACTOR)
    for headroom in _HEADROOMS:
        plans = sorted(_plans_of_hour(model, rate, headroom, system), key=lambda each: each.total)
        first_met = next(
            (each for each in plans if is_in_time(vlm, each.system, mix, Judged(goals, trace=CHOSEN))), None
        )
        if first_met is not None:
            break
    chosen = first_met or plans[-1]
    return chosen._replace(met=is_in_time(vlm, chosen.system, mix, Judged(goals)))


def _plans_of_hour(model: LabModel, rate: float, headroom: float, system: str) -> Iterator[HourPlan]:
    for policy, options in _CHOICES[system]:
        asked: dict[str, Any] = {"goal": "gpus", "rate": rate, "headroom": headroom, "options": options}
        plan = model.solve(4 * _PEAK_GPUS, policy=policy, **asked).models[MODEL]
        gpus = {name: option.replicas * option.gpus for name, option in plan.options.items()}
        yield HourPlan(LoadedSystem(plan, BY_WORK), gpus)


def compare_day() -> Findings:
    """Reproduce figure 16."""
    rows: list[tuple[Value, ...]] = []
    claims, plots, late, margins = [], [], [], []
    for vlm, paper in ((LLAMA, "41.3 %"), (INTERNVL_26B, "25 %")):
        hours: dict[str, list[HourPlan]] = {system: [] for system in _CHOICES}
        for hour in _DAY:
            model = hour_model(vlm, hour)
            for system, plans in hours.items():
                plans.append(plan_hour(vlm, model, hour, system))
        sums = {system: sum(each.total for each in plans) for system, plans in hours.items()}
        burst = {system: sum(plans[at].total for at in _BURST) for system, plans in hours.items()}
        rows += [_row(vlm.name, system, plans) for system, plans in hours.items()]
        late += [f"{vlm.name}, {system}: {missed}" for system, plans in hours.items()
                 if (missed := sum(not each.met for each in plans))]  # fmt: skip
        claims += [
            PaperClaim(f"{vlm.name}: fewer GPU-hours by ModServe's rule", paper, _less(sums, MODSERVE)),
            PaperClaim(f"{vlm.name}: in the hours of the burst", "-", _less(burst, MODSERVE)),
            PaperClaim(f"{vlm.name}: fewer GPU-hours by plans", "-", _less(sums, PLANNED)),
        ]
        best = min((MONOLITH, MODSERVE), key=lambda name: sums[name])
        margins.append(Margin(f"{vlm.name}, GPU-hours saved", best, sums[best] / sums[PLANNED]))
        plots.append(
            Plot(f"{vlm.name}: GPUs by hour", "hour of the day", "GPUs",
                 {system: tuple((float(at), float(each.total)) for at, each in enumerate(plans))
                  for system, plans in hours.items()})
        )  # fmt: skip
    return Findings(
        (
            "Llama 3.2 11B (CroAttn) and InternVL 2.5 26B (DecOnly) on A100 with the seconds of figure 14; M is a "
            "monolith on four GPUs, S text on four, E images on one; MS and S have the schedule that follows goals, L "
            "has not. Monoliths are the better of M and MS; all systems are routed by work",
            "Text, requests with images, and images of each hour of 2024-10-18, read off the published plots of the "
            f"Azure LMM trace; so many times as many that in the busiest hour {_PEAK_GPUS} GPUs of monoliths are full",
            SIZES,
            "Each hour is planned for its rate with 10 % to spare, and with more until the goals are met: of each "
            f"request type 99 % within {_FACTOR:g} times what one with an image, or none, takes alone. Plans are "
            f"chosen on one trace and judged on another, for {HORIZON_GOALS} times the longest goal and {REQUESTS} "
            "requests at least. The paper does not say its multiple, and plans each five minutes; starts are not "
            "simulated",
        ),
        tuple(claims),
        (Table("GPU-hours of the day", ("model", "deployment", "GPU-hours", "most", "least", "most by option"),
               tuple(rows)),),
        tuple(plots),
        (f"Hours in which goals are missed on the trace that judges: {'; '.join(late)}.",) if late else (),
        tuple(margins),
    )  # fmt: skip


def _row(name: str, system: str, plans: list[HourPlan]) -> tuple[Value, ...]:
    totals = [each.total for each in plans]
    most = plans[totals.index(max(totals))]
    return name, system, sum(totals), max(totals), min(totals), ", ".join(f"{n} {o}" for o, n in most.gpus.items())


def _less(sums: dict[str, int], system: str) -> str:
    return f"{1 - sums[system] / sums[MONOLITH]:.0%}"
