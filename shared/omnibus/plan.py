"""Plans as data: models, deployment options, paths with rates, epochs. No I/O, no choice made here.

A ``Plan`` is what the planner writes and gateways read. ``choose_path`` is the one decision that both must
take alike: which path a request goes, from its number and the plan's rates alone.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from math import sqrt
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from omnibus.errors import BadRequest, ProtocolError
from omnibus.families import catalog
from omnibus.graph import UNREADABLE, WIRE_VERSION

#: The options of a candidate have the name of what they are tried against, and this behind it.
CANDIDATE_MARK = "@canary"
#: 1 / golden ratio: the additive step whose multiples fill [0, 1) most evenly.
GOLDEN = 0.6180339887498949
#: Components that adapters of a model change.
LANGUAGE_COMPONENTS = frozenset({"thinker", *catalog.SPLIT})
#: The GPU type of a place without a GPU.
CPU = "cpu"


class DeploymentOption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A deployment option: components that run in one executor, of ``service``, ``replicas`` times.

    ``of`` is ``model/option`` when executors of another model serve it: both share a component.
    ``engine`` is ``module:function``, empty for the usual one. ``gpu`` is the type of its GPUs, or "cpu" for a place
    without one; empty: it is not counted among those that are declared. ``batch`` is OMNIBUS_EXECUTOR_BATCH, ``dtype``
    OMNIBUS_EXECUTOR_DTYPE; 0 and empty: as they are set where the executor runs. ``checkpoint`` is another one than the
    model's; empty: the model's. ``vllm`` are settings of its vLLM engine: OMNIBUS_VLLM_... by the ends of their names.
    ``cell`` is the cell that its executors belong to, of a model in cells (``omnibus.cells``).
    ``spares`` of the replicas are more than the load needs; unset: none.
    """

    components: tuple[str, ...]
    service: str
    replicas: int = 1
    gpus: int = 0
    of: str = ""
    engine: str = ""
    gpu: str = ""
    batch: int = 0
    checkpoint: str = ""
    dtype: str = ""
    vllm: dict[str, str | int | float | bool] | UnsetType = UNSET
    cell: str | UnsetType = UNSET
    spares: int | UnsetType = UNSET

    @property
    def spare_count(self) -> int:
        """Executors among the replicas that the load does not need."""
        return self.spares or 0


class Path(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way through a model for one request type: the option that runs each component.

    ``rate`` is in requests per second, or any unit that all paths of a type share.
    """

    name: str
    options: dict[str, str]
    rate: float

    @property
    def is_candidate(self) -> bool:
        """True if it goes through an option of a candidate, which has to prove itself."""
        return any(option.endswith(CANDIDATE_MARK) for option in self.options.values())


class ImageDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Defaults of a model that makes images, for requests that do not say them: pixels, steps, and guidance.

    0 and None leave it to the model's family.
    """

    width: int = 0
    height: int = 0
    steps: int = 0
    guidance: float | None = None


class SamplingDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Sampling of requests for text that name none. None leaves a value to the checkpoint's ``generation_config.json``,
    or, unless ``checkpoint``, to what all models have without one: all tokens by their probabilities.
    """

    checkpoint: bool = True
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None

    def values(self) -> dict[str, float]:
        """The values that are declared."""
        given = msgspec.structs.asdict(self)
        return {name: value for name, value in given.items() if value is not None and name != "checkpoint"}


class ModelPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model as it is deployed. ``encoders`` maps a modality to the component that encodes it;
    ``types`` maps a request type to its paths; ``tasks`` maps each component to its unit task's name,
    the same in two models that share the component. ``apps`` brought the model; empty: the operator did.
    ``ttft`` and ``tbt`` are the seconds to the first token, and between two, that steps of its executors keep;
    0: what the executors' own settings say. ``image_defaults`` complete requests for images. ``goals`` are the seconds
    that 99 of 100 requests keep, by figure (``omnibus.cluster.latency_histogram.FIGURES``); none: nobody set any.
    ``adapters`` are LoRA adapters of its language model by the names that requests call them by. ``speech_detector``
    finds turns in what its users say, ``energy`` or ``silero``; unset: the gateway's usual one. ``sampling_defaults``
    complete requests for text; unset: as the checkpoint recommends.
    """

    family: str
    checkpoint: str
    components: tuple[str, ...]
    encoders: dict[str, str]
    options: dict[str, DeploymentOption]
    types: dict[str, tuple[Path, ...]]
    voices: tuple[str, ...] = ()
    context: int = 0
    tasks: dict[str, str] = {}
    apps: tuple[str, ...] = ()
    ttft: float = 0.0
    tbt: float = 0.0
    image_defaults: ImageDefaults = ImageDefaults()
    goals: dict[str, float] = {}
    adapters: dict[str, str] = {}
    speech_detector: str | UnsetType = UNSET
    sampling_defaults: SamplingDefaults | UnsetType = UNSET

    def option_adapters(self, option: str) -> dict[str, str]:
        """The adapters that executors of ``option`` load: all, or none where they do not run the language model."""
        return {} if LANGUAGE_COMPONENTS.isdisjoint(self.options[option].components) else self.adapters

    def option_origin(self, option: str) -> str:
        """Return an id that differs between plans whose executors of ``option`` do not do the same; 16 hex digits."""
        own = catalog.code_origin(self.family, self.options[option].checkpoint or self.checkpoint)
        return own or blake2b(_encode([*self._origin_fields(option)]), digest_size=8).hexdigest()

    def _origin_fields(self, option: str) -> Iterator[Any]:
        """All that an executor of ``option`` goes by."""
        runs = self.options[option]
        yield from (self.family, self.checkpoint, self.context, runs.service, runs.engine, runs.gpus)
        yield [[component, self.tasks.get(component, "")] for component in runs.components]
        if runs.gpus and runs.gpu:
            yield runs.gpu
        if self.ttft or self.tbt:
            yield {"ttft": self.ttft, "tbt": self.tbt}
        if adapters := self.option_adapters(option):
            yield {"adapters": adapters}
        for name in ("batch", "checkpoint", "dtype"):
            if value := getattr(runs, name):
                yield {name: value}
        if runs.vllm:
            yield {"vllm": runs.vllm}

    @property
    def has_talker(self) -> bool:
        return "talker" in self.components

    def paths_for(self, used: frozenset[str]) -> tuple[Path, ...]:
        """Paths of the request type that uses ``used``; empty when none runs all of it.

        A type that nobody planned gets the paths of the smallest planned one that contains it, cut down.
        """
        planned = self.types.get(request_type(self.components, used))
        if planned is not None:
            return planned
        wider = [kind for kind in self.types if used <= frozenset(kind.split("+"))]
        if not wider:
            return ()
        return cut_paths(self.types[min(wider, key=lambda kind: (kind.count("+"), kind))], self.components, used)


class PriceList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of a plan: what one GPU of a type costs for an hour in ``currency``. Without a currency there are none."""

    currency: str = ""
    per_hour: dict[str, float] = {}


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All models at one epoch. ``seed`` offsets the low-discrepancy sequence of path choices.

    ``reason`` says why this plan followed the one before, ``explain`` what its maker knows of it, as JSON: for
    people alone, nothing decides by them. ``prices`` are what requests are charged by.
    """

    epoch: int
    seed: int
    created: float
    models: dict[str, ModelPlan]
    v: int = WIRE_VERSION
    reason: str = ""
    explain: dict[str, Any] = {}
    prices: PriceList = PriceList()

    def task_owners(self) -> dict[str, tuple[tuple[str, str], ...]]:
        """Each unit task's name and the (model, component) pairs that it is bound to."""
        found: dict[str, list[tuple[str, str]]] = {}
        for name, model in self.models.items():
            for component, task in model.tasks.items():
                found.setdefault(task, []).append((name, component))
        return {task: tuple(bound) for task, bound in found.items()}


def cut_paths(paths: Sequence[Path], components: Sequence[str], used: frozenset[str]) -> tuple[Path, ...]:
    """``paths`` cut down to the components ``used``; those that become equal are merged, their rates added."""
    merged: dict[tuple[tuple[str, str], ...], float] = {}
    for path in paths:
        runs = tuple((part, path.options[part]) for part in components if part in used)
        merged[runs] = merged.get(runs, 0.0) + path.rate
    return tuple(
        Path(">".join(dict.fromkeys(option for _, option in runs)), dict(runs), rate) for runs, rate in merged.items()
    )


def request_type(components: Sequence[str], used: frozenset[str]) -> str:
    """Name of the set ``used``, in the model's order: ``vision+thinker``."""
    return "+".join(component for component in components if component in used)


def request_point(gateway: str, kind: str, number: int, seed: int) -> float:
    """Return the point in [0, 1) of request ``number`` of type ``kind``.

    A Kronecker sequence: after n requests every share is met to within about log(n)/n, not to within
    the 1/sqrt(n) of coin flips; and the same id always gives the same point.
    """
    salt = blake2b(f"{gateway}/{kind}/{seed}".encode(), digest_size=8).digest()
    return (int.from_bytes(salt, "big") / 2**64 + number * GOLDEN) % 1.0


#: Steps whose multiples fill [0, 1) evenly, each by itself and all together: square roots of primes.
_STEPS = [sqrt(prime) % 1.0 for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)]


def choice_point(number: int, site: int, offset: float) -> float:
    """Return request ``number``'s point in [0, 1) for its ``site``-th choice: shares are met evenly, also jointly."""
    return (offset + number * _STEPS[site % len(_STEPS)]) % 1.0


def choose_path(paths: Sequence[Path], at: float) -> Path:
    """The path that owns point ``at`` when [0, 1) is divided by the paths' rates."""
    total = sum(path.rate for path in paths)
    if not total > 0:
        raise BadRequest("the plan gives this request type no rate: add a path with a positive rate")
    mark = at * total
    for path in paths:
        mark -= path.rate
        if mark < 0:
            return path
    return next(path for path in reversed(paths) if path.rate > 0)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Plan).decode


def encode_plan(plan: Plan) -> bytes:
    return _encode(plan)


def decode_plan(body: bytes) -> Plan:
    """Raises ``ProtocolError`` when the document is no plan of this version."""
    try:
        plan = _decode(body)
    except UNREADABLE as error:
        raise ProtocolError(
            f"the stored plan cannot be read: {error}; write it again with this build's planner"
        ) from error
    if plan.v != WIRE_VERSION:
        raise ProtocolError(f"the stored plan has version {plan.v}, this build reads {WIRE_VERSION}")
    return plan
