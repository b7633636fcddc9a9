"""ModServe's figures 14, 18 and 19: separate image and text instances, scheduled and routed by modality."""

from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from omnibus.plan import ModelPlan
from omnibus.profile import TypeProfile
from omnibus_planner.lab.experiment import Findings, PaperClaim, Plot, Table, Value, times
from omnibus_planner.lab.workloads import ImageModel, TrafficMix, azure_like, mean_images, usual_sizes
from omnibus_planner.lab.world import MODEL, LabModel, LabOption, engine_times
from omnibus_planner.simulate.cluster import RoutingRules
from omnibus_planner.simulate.outcome import SimulationOutcome

KINDS = {"image": "encode", "thinker": "think"}
SPLIT_KINDS = {"image": "encode", "prefill": "prefill", "decode": "decode"}
#: Seconds of load, and relative precision of the highest load.
_SECONDS, _PRECISION = 20.0, 0.1
_LOADS = (0.5, 0.7, 0.85, 1.0)


class ServedModel(NamedTuple):
    """A model, with its seconds.

    ``encode`` fields are per image token on one, four and eight GPUs. ``prompt`` fields are per prompt token on four
    and eight. ``step`` is one step.
    """

    name: str
    sizes: ImageModel
    encode: float
    encode_tp4: float
    encode_tp8: float
    prompt: float
    prompt_tp8: float
    step: float


#: Llama 3.2 Vision 11B: one to four tiles of 560 pixels an image, 1,601 tokens each, which its language model attends
#: to across (CroAttn). Encoding is four fifths of the time to the first token (section 3.1), and its 630 M parameters
#: gain little from more GPUs.
LLAMA = ServedModel("Llama 3.2 11B", ImageModel("mllama", False), 1.58e-5, 9.3e-6, 9.3e-6, 4e-5, 3e-5, 0.012)
#: InternVL 2.5 26B: one to thirteen tiles of 448 pixels an image by its shape, 256 tokens each, which its language
#: model reads (DecOnly). Encoding by 6 B parameters is a quarter of the time to the first token.
INTERNVL_26B = ServedModel("InternVL 2.5 26B", ImageModel("internvl", True), 1.39e-4, 7e-5, 5.35e-5, 2e-4, 1.2e-4, 0.02)


class ServingSystem(NamedTuple):
    """A system: executors by option on 32 GPUs, and the routing of requests."""

    replicas: Mapping[str, int]
    rules: RoutingRules


#: A quarter of the paper's 128 GPUs: 32 monoliths, 20 text and 48 image instances.
SYSTEMS = {
    "monolith": ServingSystem({"M": 8}, RoutingRules(spread_items=False, least_work=False)),
    "decoupled": ServingSystem({"E": 12, "L": 5}, RoutingRules(spread_items=False, least_work=False)),
    "+ scheduling": ServingSystem({"E": 12, "S": 5}, RoutingRules(spread_items=False, least_work=False)),
    "+ routing": ServingSystem({"E": 12, "S": 5}, RoutingRules()),
}
_FULL = "+ routing"


@cache
def build_model(served: ServedModel) -> LabModel:
    """Return a model with the options M, E, L and S.

    They are a monolith, an image instance, a text instance, and a text instance with the schedule that follows goals.
    """
    components = {
        "image": {"slots": 2, "batch": {"base": 0.004, "per_token": served.encode}},
        "thinker": {
            "slots": 64, "batch": {"base": 0.006, "per_token": served.prompt},
            "step": {"base": served.step, "per_item": 1e-4},
        },
    }  # fmt: skip
    on_four: dict[str, Any] = {"image": {"batch": {"base": 0.004, "per_token": served.encode_tp4}}}
    options: dict[str, dict[str, Any]] = {"M": {"components": on_four}, "S": {"ttft": 2.0, "tbt": 0.2}}
    images = round(mean_images())
    types = {
        "image+thinker": TypeProfile(("image", "thinker"), 0.48, dict(usual_sizes(served.sizes, images))),
        "thinker": TypeProfile(("thinker",), 0.52, dict(usual_sizes(served.sizes, 0))),
    }
    shapes = {
        "M": LabOption(("image", "thinker"), 4), "E": LabOption(("image",)), "L": LabOption(("thinker",), 4),
        "S": LabOption(("thinker",), 4),
    }  # fmt: skip
    return LabModel(KINDS, engine_times(KINDS, components, options), shapes, types)


@cache
def isolated_seconds(served: ServedModel) -> dict[str, float]:
    """Return seconds to the first token of a request alone, by type.

    The request runs on the monolith.
    """
    text, image = usual_sizes(served.sizes, 0)["prompt_tokens"], usual_sizes(served.sizes, 1)
    return {
        "thinker": 0.006 + served.prompt * text + served.step,
        "image+thinker": 0.01 + served.encode_tp4 * image["image_tokens"] + served.prompt * image["prompt_tokens"]
        + served.step,
    }  # fmt: skip


def run_system(
    served: ServedModel, plan: ModelPlan, rules: RoutingRules, mix: TrafficMix, seconds: float = _SECONDS, seed: int = 1
) -> SimulationOutcome:
    """Run ``plan`` under Azure-like requests."""
    arrivals = azure_like(served.sizes, mix, seconds, seed)
    return build_model(served).run(plan, arrivals, seconds, rules=rules, warm_up=0.1, seed=seed)


def meets_goals(served: ServedModel, run: SimulationOutcome, factor: float) -> bool:
    """Return True if 90 % of each type have their first token in time."""
    alone = isolated_seconds(served)
    return all(each.p90.get("first_token", 0.0) <= factor * alone[each.kind] for each in run.types)


def most_load(served: ServedModel, replicas: Mapping[str, int], rules: RoutingRules, factor: float) -> float:
    """Return the highest req/s that are served in time."""
    plan = build_model(served).route(replicas).models[MODEL]

    def keeps_up(rate: float) -> bool:
        return meets_goals(served, run_system(served, plan, rules, TrafficMix(rate)), factor)

    low, high = 0.0, 4.0
    while keeps_up(high):
        low, high = high, 2 * high
    while high - low > _PRECISION * high and high > 0.2:
        middle = (low + high) / 2
        low, high = (middle, high) if keeps_up(middle) else (low, middle)
    return low


#: Requests and sizes in all experiments with these models.
AZURE_LIKE = "Azure-like requests: 48 % with images (1 to 16, mean 2.6), gaps with a coefficient of variation of 1.5"
SIZES = (
    "Prompts have 60 tokens in the median, which the paper calls few, without a figure. An image has 500 pixels a side "
    "in the median and one in twenty more than 1,000 (section 3.2); by the models' rules that is 1 to 4 tiles, 3,401 "
    "tokens in the mean, for Llama, and 1 to 13 tiles, 1,893 tokens, for InternVL, whose tiles follow from an image's "
    "shape"
)
#: Explanation of a smaller gain of InternVL than in the paper.
BATCH_REMARK = (
    "InternVL gains less than Llama, other than in the paper, which says why it gained more: in a monolith prefill "
    "contends with encoding, and its encoder loses by batches. It publishes no seconds of batches; here a batch costs "
    "what its images cost, and three quarters of the work are prompts, which run on four GPUs either way"
)
_CONDITIONS = (
    "Llama 3.2 11B (CroAttn) and InternVL 2.5 26B (DecOnly) on A100, a quarter of the paper's 128 GPUs: 8 monoliths on "
    "four GPUs each, or 5 text instances on four and 12 image instances on one. The paper's profiles have no numbers: "
    "seconds follow from the sizes of models, so that encoding is 79 % and 25 % of the first token's time on the "
    "monolith (section 3.1), and InternVL's encoder is 1.4 times as fast on twice the GPUs "
    "(figure 9: 1.3 from four to eight)",
    AZURE_LIKE,
    SIZES,
)


def compare_systems() -> Findings:
    """Reproduce figure 14."""
    rows: list[tuple[Value, ...]] = []
    plots, claims = [], []
    gains: list[float] = []
    for served, paper in ((LLAMA, ("27 %, 42 %", "-")), (INTERNVL_26B, ("46 %, 47 %", "-"))):
        full = most_load(served, SYSTEMS["monolith"].replicas, SYSTEMS["monolith"].rules, 20.0)
        lines: dict[str, list[tuple[float, float]]] = {}
        at_load = {}
        for name, system in SYSTEMS.items():
            plan = build_model(served).route(system.replicas).models[MODEL]
            for load in _LOADS:
                run = run_system(served, plan, system.rules, TrafficMix(load * full))
                found = run.percentiles["first_token"]
                at_load[name, load] = found
                lines.setdefault(name, []).append((load, found["0.99"]))
                rows.append((served.name, name, f"{load:.0%}", found["0.5"], found["0.99"]))
        plots.append(
            Plot(f"{served.name}: P99 of the first token", "load of the monoliths", "s",
                 {name: tuple(points) for name, points in lines.items()})
        )  # fmt: skip
        steps = [at_load[name, _LOADS[2]] for name in SYSTEMS]
        gains.append(steps[0]["0.99"] / steps[1]["0.99"])
        less = [f"{1 - after[part] / before[part]:.0%}" for before, after in pairwise(steps)
                for part in ("0.5", "0.99")]  # fmt: skip
        claims += [
            PaperClaim(
                f"{served.name}: decoupled, less P50 and P99", paper[0] + " (mean, P99)", f"{less[0]}, {less[1]}"
            ),
            PaperClaim(f"{served.name}: scheduling, less again", "12 %, 25 %", f"{less[2]}, {less[3]}"),
            PaperClaim(f"{served.name}: routing, less again", "14 %, 32 %", f"{less[4]}, {less[5]}"),
        ]
    columns = ("model", "system", "load", "P50 s", "P99 s")
    return Findings(
        (*_CONDITIONS, "Load: part of the most of which monoliths serve 90 % within 20 times a request alone; at 85 %"),
        tuple(claims), (Table("Seconds to the first token", columns, tuple(rows)),), tuple(plots), order_remark(*gains),
    )  # fmt: skip


def order_remark(llama: float, internvl: float) -> tuple[str, ...]:
    """Return the reason why InternVL gains less than Llama, if it does."""
    return (BATCH_REMARK,) if internvl < llama else ()


def compare_instances() -> Findings:
    """Reproduce figure 18."""
    rows: list[tuple[Value, ...]] = []
    best: dict[str, float] = {}
    for served in (LLAMA, INTERNVL_26B):
        rate = 0.5 * most_load(served, {"M": 4}, SYSTEMS["monolith"].rules, 20.0)
        for share in (0.1, 0.5, 0.9):
            found = {}
            for name, replicas in (("1:12", {"E": 12, "S": 1}), ("2:8", {"E": 8, "S": 2}), ("3:4", {"E": 4, "S": 3}),
                                   ("monolith", {"M": 4})):  # fmt: skip
                system = SYSTEMS["monolith" if name == "monolith" else _FULL]
                plan = build_model(served).route(replicas).models[MODEL]
                run = run_system(served, plan, system.rules, TrafficMix(rate, share))
                found[name] = run.percentiles["first_token"]["0.99"]
            least = min(seconds for name, seconds in found.items() if name != "monolith")
            best[served.name] = max(best.get(served.name, 0.0), found["monolith"] / least)
            rows.append((served.name, f"{share:.0%}", *found.values()))
    columns = ("model", "requests with images", "1 text : 12 image", "2 : 8", "3 : 4", "4 monoliths")
    return Findings(
        (*_CONDITIONS, "16 GPUs (the paper: 64, with 4:48 to 12:16); load: half of the most that four monoliths serve"),
        tuple(
            PaperClaim(
                f"{served.name}: P99 of the monolith over the best ratio, at most", paper, times(best[served.name])
            )
            for served, paper in ((LLAMA, "18.4x"), (INTERNVL_26B, "9.2x"))
        ),
        (Table("P99 seconds to the first token", columns, tuple(rows)),),
    )


@cache
def build_split_model(served: ServedModel) -> LabModel:
    """Return a model with prefill and encoder combined, or separate.

    Prefill runs on eight GPUs, with an encoder in it or with eight encoders on one GPU each; decode has spare capacity.
    """
    components = {
        "image": {"slots": 2, "batch": {"base": 0.004, "per_token": served.encode}},
        "prefill": {"slots": 4, "batch": {"base": 0.006, "per_token": served.prompt_tp8}},
        "decode": {"slots": 128, "step": {"base": served.step, "per_item": 1e-4}},
    }
    together: dict[str, Any] = {"image": {"batch": {"base": 0.004, "per_token": served.encode_tp8}}}
    shapes = {
        "EP": LabOption(("image", "prefill"), 8), "E": LabOption(("image",)), "P": LabOption(("prefill",), 8),
        "D": LabOption(("decode",), 8),
    }  # fmt: skip
    sizes = dict(usual_sizes(served.sizes, round(mean_images())))
    types = {
        "image+prefill+decode": TypeProfile(tuple(SPLIT_KINDS), 0.48, sizes),
        "prefill+decode": TypeProfile(("prefill", "decode"), 0.52, dict(usual_sizes(served.sizes, 0))),
    }
    return LabModel(SPLIT_KINDS, engine_times(SPLIT_KINDS, components, {"EP": {"components": together}}), shapes, types)


def compare_split() -> Findings:
    """Reproduce figure 19."""
    served = INTERNVL_26B
    model = build_split_model(served)
    plans = {
        name: model.route(replicas)
        for name, replicas in (("PD-Monolith", {"EP": 4, "D": 4}), ("PD-ModServe", {"E": 8, "P": 3, "D": 4}))
    }
    full = min(plan.capacity[MODEL] for plan in plans.values())
    rows: list[tuple[Value, ...]] = []
    lines: dict[str, list[tuple[float, float]]] = {name: [] for name in plans}
    best = {"0.5": 0.0, "0.9": 0.0}
    for load in (0.3, 0.5, 0.7, 0.85):
        found = {}
        for name, plan in plans.items():
            requests = [
                each._replace(kind=each.kind.replace("thinker", "prefill+decode"))
                for each in azure_like(served.sizes, TrafficMix(load * full), _SECONDS)
            ]
            run = model.run(plan.models[MODEL], requests, _SECONDS, warm_up=0.1)
            found[name] = run.percentiles["first_token"]
            lines[name].append((load, found[name]["0.9"]))
        one, other = found.values()
        best = {part: max(before, one[part] / other[part]) for part, before in best.items()}
        rows.append((f"{load:.0%}", one["0.5"], one["0.9"], other["0.5"], other["0.9"]))
    return Findings(
        (AZURE_LIKE, SIZES, "InternVL 2.5 26B; 4 prefill instances on 8 GPUs each with an encoder, or 3 and 8 encoders "
                            "on one; as many decode instances beside both"),
        (
            PaperClaim("less time to the first token, P50", "up to 2.8x (mean)", times(best["0.5"])),
            PaperClaim("P90", "up to 3.2x", times(best["0.9"])),
        ),
        (Table("Seconds to the first token", ("load", "monolith P50", "P90", "ModServe P50", "P90"), tuple(rows)),),
        (Plot("P90 of the first token", "load", "s", {name: tuple(points) for name, points in lines.items()}),),
    )  # fmt: skip
