"""ModServe's figures 14, 18 and 19: separate image and text instances, scheduled and routed by modality."""

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any

from omnibus.profile import TypeProfile
from tests.lab.experiment import Findings, PaperClaim, Plot, Table, Value, times
from tests.lab.modserve_model import (
    AZURE_LIKE,
    BY_WORK,
    IN_TURN,
    INTERNVL_26B,
    LLAMA,
    MIN_SECONDS,
    REQUESTS,
    SIZES,
    WARM_UP,
    Judged,
    ServedModel,
    ServingSystem,
    first_token_goals,
    most_load,
    routed_system,
    run_system,
)
from tests.lab.workloads import TrafficMix, azure_like, mean_images, usual_sizes
from tests.lab.world import MODEL, LabModel, LabOption, engine_times

SPLIT_KINDS = {"image": "encode", "prefill": "prefill", "decode": "decode"}
_LOADS = (0.5, 0.7, 0.85, 1.0)
#: The paper's baseline, and its three steps from it: a quarter of its 128 GPUs, 32 monoliths, 20 text and 48 image
#: instances. Then its baseline with the routing and the schedule that the steps have.
_STEPS = {
    "monolith in turn (the paper's)": ServingSystem({"M": 8}, IN_TURN),
    "decoupled": ServingSystem({"E": 12, "L": 5}, IN_TURN),
    "+ scheduling": ServingSystem({"E": 12, "S": 5}, IN_TURN),
    "+ routing": ServingSystem({"E": 12, "S": 5}, BY_WORK),
}
_MONOLITHS = {
    "monolith, routed by work": ServingSystem({"M": 8}, BY_WORK),
    "monolith, routed and scheduled": ServingSystem({"MS": 8}, BY_WORK),
}
#: Ratios of text and image instances of figure 18, and monoliths on as many GPUs.
_RATIOS = {
    "1 text : 12 image": ServingSystem({"E": 12, "S": 1}, BY_WORK),
    "2 : 8": ServingSystem({"E": 8, "S": 2}, BY_WORK),
    "3 : 4": ServingSystem({"E": 4, "S": 3}, BY_WORK),
    "4 monoliths in turn": ServingSystem({"M": 4}, IN_TURN),
    "4 monoliths": ServingSystem({"M": 4}, BY_WORK),
}
_FOUR = tuple(name for name in _RATIOS if "monoliths" in name)
#: Goals of figures 14 and 18 as a multiple of a request alone, the share that meets them, and the load of claims.
_FACTOR, _MOST_SHARE, _CLAIMED_LOAD = 20.0, 0.9, 0.85
#: Explanation of a smaller gain of InternVL than in the paper.
BATCH_REMARK = (
    "InternVL gains less than Llama here, and more in the paper. The paper explains that in a monolith prefill "
    "contends with encoding, and that the encoder loses by batches. It publishes no seconds of batches. Here a batch "
    "costs as much as its images, and three quarters of the work are prompts, which run on four GPUs in both systems"
)
_CONDITIONS = (
    "Llama 3.2 11B (CroAttn) and InternVL 2.5 26B (DecOnly) on A100, a quarter of the paper's 128 GPUs. There are 8 "
    "monoliths on four GPUs each, or 5 text instances on four and 12 image instances on one. The paper's profiles have "
    "no numbers, so seconds follow from the sizes of models. Encoding is 79 % and 25 % of the first token's time on "
    "the monolith (section 3.1). InternVL's encoder is 1.4 times as fast on twice the GPUs (figure 9: 1.3 from four to "
    "eight)",
    AZURE_LIKE,
    SIZES,
)


def compare_systems() -> Findings:
    """Reproduce figure 14."""
    rows: list[tuple[Value, ...]] = []
    plots, claims = [], []
    gains: list[float] = []
    for vlm, paper in ((LLAMA, "27 %, 42 % (mean, P99)"), (INTERNVL_26B, "46 %, 47 % (mean, P99)")):
        systems = {name: routed_system(vlm, each) for name, each in (_STEPS | _MONOLITHS).items()}
        full = most_load(vlm, next(iter(systems.values())), Judged(first_token_goals(vlm, _FACTOR), _MOST_SHARE))
        found = {
            (name, load): run_system(vlm, system, TrafficMix(load * full)).percentiles["first_token"]
            for name, system in systems.items()
            for load in _LOADS
        }
        rows += [(vlm.name, name, f"{load:.0%}", at["0.5"], at["0.99"]) for (name, load), at in found.items()]
        lines = {name: tuple((load, found[name, load]["0.99"]) for load in _LOADS) for name in systems}
        plots.append(Plot(f"{vlm.name}: P99 of the first token", "load of the monoliths", "s", lines))
        at_load = {name: found[name, _CLAIMED_LOAD] for name in systems}
        steps = [at_load[name] for name in _STEPS]
        gains.append(steps[0]["0.99"] / steps[1]["0.99"])
        less = [_less(before, after) for before, after in pairwise(steps)]
        claims += [
            PaperClaim(f"{vlm.name}: decoupled, less P50 and P99", paper, less[0]),
            PaperClaim(f"{vlm.name}: scheduling, less again", "12 %, 25 %", less[1]),
            PaperClaim(f"{vlm.name}: routing, less again", "14 %, 32 %", less[2]),
            *(
                PaperClaim(f"{vlm.name}: {name}, less than in turn", "-", _less(steps[0], at_load[name]))
                for name in _MONOLITHS
            ),
        ]
    columns = ("model", "system", "load", "P50 s", "P99 s")
    return Findings(
        (*_CONDITIONS, f"Load: a fraction of the largest rate at which monoliths in turn serve {_MOST_SHARE:.0%} of "
                       f"each type in time. The first token is in time within {_FACTOR:g} times that of a request "
                       f"alone. Claims are at a load of {_CLAIMED_LOAD:.0%}"),
        tuple(claims), (Table("Seconds to the first token", columns, tuple(rows)),), tuple(plots), order_remark(*gains),
    )  # fmt: skip


def _less(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Format the parts by which the median and the 99th percentile fall."""
    return ", ".join(f"{1 - after[part] / before[part]:.0%}" for part in ("0.5", "0.99"))


def order_remark(llama: float, internvl: float) -> tuple[str, ...]:
    """Return the reason why InternVL gains less than Llama, if it does."""
    return (BATCH_REMARK,) if internvl < llama else ()


def compare_instances() -> Findings:
    """Reproduce figure 18."""
    rows: list[tuple[Value, ...]] = []
    gains: dict[str, dict[str, float]] = {}
    for vlm in (LLAMA, INTERNVL_26B):
        systems = {name: routed_system(vlm, each) for name, each in _RATIOS.items()}
        judge = Judged(first_token_goals(vlm, _FACTOR), _MOST_SHARE)
        rate = 0.5 * most_load(vlm, systems["4 monoliths"], judge)
        gains[vlm.name] = dict.fromkeys(_FOUR, 0.0)
        for share in (0.1, 0.5, 0.9):
            found = {
                name: run_system(vlm, system, TrafficMix(rate, share)).percentiles["first_token"]["0.99"]
                for name, system in systems.items()
            }
            least = min(seconds for name, seconds in found.items() if name not in _FOUR)
            gains[vlm.name] = {name: max(gain, found[name] / least) for name, gain in gains[vlm.name].items()}
            rows.append((vlm.name, f"{share:.0%}", *found.values()))
    return Findings(
        (*_CONDITIONS, "16 GPUs (the paper: 64, with 4:48 to 12:16). Load: half of the largest rate of four "
                       "monoliths, routed by work"),
        tuple(
            PaperClaim(f"{vlm.name}: P99 of {name} over the best ratio, at most", figure,
                       times(gains[vlm.name][name]))
            for vlm, paper in ((LLAMA, "18.4x"), (INTERNVL_26B, "9.2x"))
            for name, figure in zip(_FOUR, (paper, "-"), strict=True)
        ),
        (Table("P99 seconds to the first token", ("model", "requests with images", *_RATIOS), tuple(rows)),),
    )  # fmt: skip


@cache
def build_split_model(vlm: ServedModel) -> LabModel:
    """Return a model with prefill and encoder combined, or separate.

    Prefill runs on eight GPUs, with an encoder in it or with eight encoders on one GPU each; decode has spare capacity.
    """
    components = {
        "image": {"slots": 2, "batch": {"base": 0.004, "per_token": vlm.encode}},
        "prefill": {"slots": 4, "batch": {"base": 0.006, "per_token": vlm.prompt_tp8}},
        "decode": {"slots": 128, "step": {"base": vlm.step, "per_item": 1e-4}},
    }
    together: dict[str, Any] = {"image": {"batch": {"base": 0.004, "per_token": vlm.encode_tp8}}}
    shapes = {
        "EP": LabOption(("image", "prefill"), 8), "E": LabOption(("image",)), "P": LabOption(("prefill",), 8),
        "D": LabOption(("decode",), 8),
    }  # fmt: skip
    sizes = dict(usual_sizes(vlm.sizes, round(mean_images())))
    types = {
        "image+prefill+decode": TypeProfile(tuple(SPLIT_KINDS), 0.48, sizes),
        "prefill+decode": TypeProfile(("prefill", "decode"), 0.52, dict(usual_sizes(vlm.sizes, 0))),
    }
    return LabModel(SPLIT_KINDS, engine_times(SPLIT_KINDS, components, {"EP": {"components": together}}), shapes, types)


def compare_split() -> Findings:
    """Reproduce figure 19."""
    vlm = INTERNVL_26B
    model = build_split_model(vlm)
    plans = {
        name: model.route(replicas)
        for name, replicas in (("PD-Monolith", {"EP": 4, "D": 4}), ("PD-ModServe", {"E": 8, "P": 3, "D": 4}))
    }
    full = min(plan.capacity[MODEL] for plan in plans.values())
    rows: list[tuple[Value, ...]] = []
    lines: dict[str, list[tuple[float, float]]] = {name: [] for name in plans}
    best = {"0.5": 0.0, "0.9": 0.0}
    for load in (0.3, 0.5, 0.7, 0.85):
        found, seconds = {}, max(MIN_SECONDS, REQUESTS / (load * full))
        for name, plan in plans.items():
            requests = [
                each._replace(kind=each.kind.replace("thinker", "prefill+decode"))
                for each in azure_like(vlm.sizes, TrafficMix(load * full), seconds)
            ]
            run = model.run(plan.models[MODEL], requests, seconds, warm_up=WARM_UP)
            found[name] = run.percentiles["first_token"]
            lines[name].append((load, found[name]["0.9"]))
        one, other = found.values()
        best = {part: max(before, one[part] / other[part]) for part, before in best.items()}
        rows.append((f"{load:.0%}", one["0.5"], one["0.9"], other["0.5"], other["0.9"]))
    return Findings(
        (AZURE_LIKE, SIZES, "InternVL 2.5 26B. There are 4 prefill instances on 8 GPUs each with an encoder, or 3 of "
                            "them and 8 encoders on one GPU. Both have the same number of decode instances"),
        (
            PaperClaim("less time to the first token, P50", "up to 2.8x (mean)", times(best["0.5"])),
            PaperClaim("P90", "up to 3.2x", times(best["0.9"])),
        ),
        (Table("Seconds to the first token", ("load", "monolith P50", "P90", "ModServe P50", "P90"), tuple(rows)),),
        (Plot("P90 of the first token", "load", "s", {name: tuple(points) for name, points in lines.items()}),),
    )  # fmt: skip
