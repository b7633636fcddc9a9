"""ModServe's models on A100, their requests and goals, and the load that a system serves in time."""

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec

from omnibus.plan import ModelPlan
from omnibus.profile import TypeProfile
from omnibus_planner.declared.planned_spec import TailLatencyGoals, TypeLatencyGoals
from omnibus_planner.simulate.cluster import RoutingRules
from omnibus_planner.simulate.in_time import highest_rate, keeps_goals
from omnibus_planner.simulate.outcome import SimulationOutcome
from tests.lab.workloads import ImageModel, TrafficMix, azure_like, mean_images, usual_sizes
from tests.lab.world import MODEL, LabModel, LabOption, engine_times

KINDS = {"image": "encode", "thinker": "think"}
#: Shortest run in seconds, the fraction that warms executors up, and relative precision of the highest load.
MIN_SECONDS, WARM_UP, _PRECISION = 20.0, 0.1, 0.05
#: Requests of a run, and its shortest length as a multiple of the longest goal.
REQUESTS, HORIZON_GOALS = 1500, 20
#: The smallest load to try, in req/s.
LEAST_RATE = 0.1
#: Seeds of requests: plans are chosen on one trace, and all systems judged on another.
CHOSEN, SCORED = 2, 1
#: The schedule that follows goals: seconds to the first token, and between two.
_SCHEDULED: dict[str, Any] = {"ttft": 2.0, "tbt": 0.2}


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
    """A system: executors by option, and the routing of requests."""

    replicas: Mapping[str, int]
    rules: RoutingRules


class LoadedSystem(NamedTuple):
    """A deployment, and the routing of its requests."""

    plan: ModelPlan
    rules: RoutingRules


#: The routing of a baseline that gives executors requests in turn, and that of gateways, by outstanding work.
IN_TURN, BY_WORK = RoutingRules(spread_items=False, least_work=False), RoutingRules()


@cache
def build_model(vlm: ServedModel) -> LabModel:
    """Return a model with the options M, E and L, and MS and S with the schedule that follows goals.

    M and MS are monoliths, E is an image instance, L and S are text instances.
    """
    components = {
        "image": {"slots": 2, "batch": {"base": 0.004, "per_token": vlm.encode}},
        "thinker": {
            "slots": 64, "batch": {"base": 0.006, "per_token": vlm.prompt},
            "step": {"base": vlm.step, "per_item": 1e-4},
        },
    }  # fmt: skip
    on_four: dict[str, Any] = {"components": {"image": {"batch": {"base": 0.004, "per_token": vlm.encode_tp4}}}}
    options = {"M": on_four, "MS": on_four | _SCHEDULED, "S": _SCHEDULED}
    images = round(mean_images())
    types = {
        "image+thinker": TypeProfile(("image", "thinker"), 0.48, dict(usual_sizes(vlm.sizes, images))),
        "thinker": TypeProfile(("thinker",), 0.52, dict(usual_sizes(vlm.sizes, 0))),
    }
    shapes = {
        "M": LabOption(("image", "thinker"), 4), "MS": LabOption(("image", "thinker"), 4), "E": LabOption(("image",)),
        "L": LabOption(("thinker",), 4), "S": LabOption(("thinker",), 4),
    }  # fmt: skip
    return LabModel(KINDS, engine_times(KINDS, components, options), shapes, types)


@cache
def isolated_seconds(vlm: ServedModel) -> dict[str, float]:
    """Return seconds to the first token of a request alone, by type.

    The request runs on the monolith.
    """
    text, image = usual_sizes(vlm.sizes, 0)["prompt_tokens"], usual_sizes(vlm.sizes, 1)
    return {
        "thinker": 0.006 + vlm.prompt * text + vlm.step,
        "image+thinker": 0.01 + vlm.encode_tp4 * image["image_tokens"] + vlm.prompt * image["prompt_tokens"]
        + vlm.step,
    }  # fmt: skip


def tail_goals(vlm: ServedModel, factor: float) -> TailLatencyGoals:
    """Return goals for first tokens by request type, and for times between tokens.

    They are ``factor`` times what a request takes alone on the monolith, with one image or none.
    """
    first = {kind: TypeLatencyGoals(first_token=factor * each) for kind, each in isolated_seconds(vlm).items()}
    return TailLatencyGoals(token=factor * vlm.step, types=first)


def first_token_goals(vlm: ServedModel, factor: float) -> TailLatencyGoals:
    """Return ``tail_goals`` for first tokens alone."""
    return msgspec.structs.replace(tail_goals(vlm, factor), token=0.0)


def run_system(vlm: ServedModel, system: LoadedSystem, mix: TrafficMix) -> SimulationOutcome:
    """Run ``system`` under Azure-like requests."""
    seconds = max(MIN_SECONDS, REQUESTS / mix.rate)
    arrivals = azure_like(vlm.sizes, mix, seconds, SCORED)
    return build_model(vlm).run(system.plan, arrivals, seconds, rules=system.rules, warm_up=WARM_UP)


class Judged(NamedTuple):
    """Requests that judge systems: the goals, the share that must meet them, and the trace."""

    goals: TailLatencyGoals
    share: float = 0.99
    trace: int = SCORED


def is_in_time(vlm: ServedModel, system: LoadedSystem, mix: TrafficMix, judge: Judged) -> bool:
    """Return True if enough requests of each type meet their goals in a long enough run.

    It lasts ``HORIZON_GOALS`` times the longest goal after warm-up, and for ``REQUESTS`` at least.
    """
    goals = judge.goals.of_model()
    observed = max(REQUESTS / mix.rate, HORIZON_GOALS * max(goals.loosest().values()))
    seconds = observed / (1 - WARM_UP)
    arrivals = list(azure_like(vlm.sizes, mix, seconds, judge.trace))
    simulated = build_model(vlm).simulated(system.plan, goals, system.rules)
    return keeps_goals(simulated, arrivals, seconds, warm_up=WARM_UP, share=judge.share)


def most_load(vlm: ServedModel, system: LoadedSystem, judge: Judged, precision: float = _PRECISION) -> float:
    """Return the highest req/s that ``system`` serves in time; 0 below ``LEAST_RATE``."""
    guess = sum(path.rate for paths in system.plan.types.values() for path in paths) / 2
    return highest_rate(lambda rate: is_in_time(vlm, system, TrafficMix(rate), judge), guess, precision, LEAST_RATE)


def routed_system(vlm: ServedModel, system: ServingSystem) -> LoadedSystem:
    """Return ``system`` with the paths that serve most."""
    return LoadedSystem(build_model(vlm).route(system.replicas).models[MODEL], system.rules)


#: Requests and sizes in all experiments with these models.
AZURE_LIKE = "Azure-like requests: 48 % with images (1 to 16, mean 2.6), gaps with a coefficient of variation of 1.5"
SIZES = (
    "Prompts have 60 tokens in the median, which the paper calls few, without a figure. An image has 500 pixels a side "
    "in the median and one in twenty more than 1,000 (section 3.2). By the models' rules that is 1 to 4 tiles for "
    "Llama, 3,401 tokens in the mean. For InternVL it is 1 to 13 tiles, 1,893 tokens, by an image's shape"
)
