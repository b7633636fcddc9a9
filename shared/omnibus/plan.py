"""Plans as data: models, deployment options, paths with rates, epochs. No I/O, no choice made here.

The planner writes a ``Plan``, and gateways read it. Both must decide one thing alike, in ``choose_path``: the path of a
request, given its number and the plan's rates alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from math import inf, sqrt
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from omnibus.errors import BadRequest, ProtocolError
from omnibus.families import catalog
from omnibus.graph import UNREADABLE, WIRE_VERSION
from omnibus.model_defaults import ImageDefaults, SamplingDefaults
from omnibus.plan_goals import ModelGoals

#: Suffix of a candidate's options; the rest is the name of the option that they are compared with.
CANDIDATE_MARK = "@canary"
#: 1 / golden ratio: the additive step whose multiples fill [0, 1) most evenly.
GOLDEN = 0.6180339887498949
#: Components that adapters of a model change.
LANGUAGE_COMPONENTS = frozenset({"thinker", *catalog.SPLIT})
#: Components whose output is speech.
SPEECH_COMPONENTS = frozenset({"talker", "vocoder"})
#: The GPU type of a place without a GPU.
CPU = "cpu"


class DeploymentOption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A deployment option: components that run in one executor, of ``service``, ``replicas`` times.

    ``of`` is ``model/option`` if executors of another model serve it, because both share a component. ``engine`` is
    ``module:function``, empty for the usual one. ``gpu`` is the type of its GPUs, "cpu" for a place without one, or
    empty if it does not count among the declared ones. ``batch`` is OMNIBUS_EXECUTOR_BATCH, ``dtype``
    OMNIBUS_EXECUTOR_DTYPE. If 0 or empty, the executor's environment sets them. ``checkpoint`` overrides the model's if
    it is not empty. ``vllm`` are settings of its vLLM engine, by the ends of their OMNIBUS_VLLM_... names. ``cell`` is
    the cell of its executors, for a model in cells (``omnibus.cells``). ``spares`` is the number of replicas beyond the
    load's need; unset means none. ``credits`` is the most requests in flight that gateways give each executor, so that
    requests keep their goals under overload. If unset, the executor's own setting (OMNIBUS_EXECUTOR_CREDITS) applies.
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
    credits: int | UnsetType = UNSET

    @property
    def spare_count(self) -> int:
        """Number of replicas beyond the load's need."""
        return self.spares or 0

    def bound_credits(self, own: int) -> int:
        """Return the most requests in flight of an executor whose ``own`` setting allows so many."""
        return min(own, self.credits or own)


class Path(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way through a model for one request type: the option that runs each component.

    ``rate`` is in requests per second, or any unit that all paths of a type share.
    """

    name: str
    options: dict[str, str]
    rate: float

    @property
    def is_candidate(self) -> bool:
        """True if it contains an option of a candidate under test."""
        return any(option.endswith(CANDIDATE_MARK) for option in self.options.values())


class ModelPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A deployed model.

    ``encoders`` maps a modality to the component that encodes it. ``types`` maps a request type to its paths. ``tasks``
    maps each component to its unit task's name, the same in two models that share the component. ``apps`` lists the
    apps that brought the model, and is empty if the operator declared it. ``ttft`` and ``tbt`` are the seconds to the
    first token, and between two, that steps of its executors keep. With 0, the executors' own settings apply.
    ``image_defaults`` complete requests for images. ``goals`` are the seconds that 99 of 100 requests keep, by figure
    (``omnibus.cluster.latency_histogram.FIGURES``), and ``type_goals`` those of request types (``ModelGoals``). If
    unset, no type has its own. ``adapters`` are LoRA adapters of its language model by the names
    in requests. ``speech_detector`` (``energy`` or ``silero``) finds turns in users' speech; if unset, the gateway's
    usual one does. ``sampling_defaults`` complete requests for text; if unset, the checkpoint's recommendation does.
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
    type_goals: dict[str, dict[str, float]] | UnsetType = UNSET

    @property
    def latency_goals(self) -> ModelGoals:
        """The goals of all requests, and of request types."""
        return ModelGoals(self.goals, self.type_goals or {})

    @property
    def credits(self) -> dict[str, int]:
        """The most requests in flight at each executor, by option; without options that have no limit."""
        return {name: option.credits for name, option in self.options.items() if option.credits}

    def with_credits(self, credits: Mapping[str, int]) -> "ModelPlan":
        """Return this plan with ``credits`` by option, and no limit for the others."""
        options = {
            name: msgspec.structs.replace(option, credits=credits.get(name, UNSET))
            for name, option in self.options.items()
        }
        return msgspec.structs.replace(self, options=options)

    def longest_wait(self, used: frozenset[str]) -> float:
        """Return the seconds after which requests that use ``used`` have missed a goal without any work on them.

        They are infinite without such a goal. Goals of figures that these requests do not have do not count.
        """
        goals = self.latency_goals.of_type("+".join(used))
        figures = {"done": used, "first_token": used & LANGUAGE_COMPONENTS, "first_audio": used & SPEECH_COMPONENTS}
        return min([goals[figure] for figure, parts in figures.items() if parts and figure in goals], default=inf)

    def option_adapters(self, option: str) -> dict[str, str]:
        """Return the adapters that executors of ``option`` load.

        They load all if they run the language model, else none.
        """
        return {} if LANGUAGE_COMPONENTS.isdisjoint(self.options[option].components) else self.adapters

    def option_origin(self, option: str) -> str:
        """Return an id of the work of ``option``'s executors, 16 hex digits.

        It differs between plans whose executors differ.
        """
        own = catalog.code_origin(self.family, self.options[option].checkpoint or self.checkpoint)
        return own or blake2b(_encode([*self._origin_fields(option)]), digest_size=8).hexdigest()

    def _origin_fields(self, option: str) -> Iterator[Any]:
        """Yield all values that determine the work of an executor of ``option``."""
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
        """Return the paths of the request type that uses ``used``; empty if none runs all of it.

        An unplanned type gets the paths of the smallest planned one that contains it, cut down.
        """
        planned = self.types.get(request_type(self.components, used))
        if planned is not None:
            return planned
        wider = [kind for kind in self.types if used <= frozenset(kind.split("+"))]
        if not wider:
            return ()
        return cut_paths(self.types[min(wider, key=lambda kind: (kind.count("+"), kind))], self.components, used)


class PriceList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of a plan: one hour of a GPU by its type, in ``currency``. Without it there are none."""

    currency: str = ""
    per_hour: dict[str, float] = {}


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All models at one epoch. ``seed`` offsets the low-discrepancy sequence of path choices.

    ``reason`` is the reason for this plan. ``explain`` has the planner's explanation as JSON, for people only: it
    affects no decision. ``prices`` are the prices of requests. ``placement`` has the number of replicas by
    ``model/option`` and node; options without an entry may run anywhere.
    """

    epoch: int
    seed: int
    created: float
    models: dict[str, ModelPlan]
    v: int = WIRE_VERSION
    reason: str = ""
    explain: dict[str, Any] = {}
    prices: PriceList = PriceList()
    placement: dict[str, dict[str, int]] | UnsetType = UNSET

    def task_owners(self) -> dict[str, tuple[tuple[str, str], ...]]:
        """Return the (model, component) pairs bound to each unit task's name."""
        found: dict[str, list[tuple[str, str]]] = {}
        for name, model in self.models.items():
            for component, task in model.tasks.items():
                found.setdefault(task, []).append((name, component))
        return {task: tuple(bound) for task, bound in found.items()}


def cut_paths(paths: Sequence[Path], components: Sequence[str], used: frozenset[str]) -> tuple[Path, ...]:
    """Return ``paths`` cut down to the components ``used``; equal ones are merged, their rates added."""
    merged: dict[tuple[tuple[str, str], ...], float] = {}
    for path in paths:
        runs = tuple((part, path.options[part]) for part in components if part in used)
        merged[runs] = merged.get(runs, 0.0) + path.rate
    return tuple(
        Path(">".join(dict.fromkeys(option for _, option in runs)), dict(runs), rate) for runs, rate in merged.items()
    )


def request_type(components: Sequence[str], used: frozenset[str]) -> str:
    """Return the name of the set ``used``, in the model's order: ``vision+thinker``."""
    return "+".join(component for component in components if component in used)


def request_point(gateway: str, kind: str, number: int, seed: int) -> float:
    """Return the point in [0, 1) of request ``number`` of type ``kind``.

    The points are a Kronecker sequence. After n requests, every share is met to within about log(n)/n instead of the
    1/sqrt(n) of coin flips. The same id always gives the same point.
    """
    salt = blake2b(f"{gateway}/{kind}/{seed}".encode(), digest_size=8).digest()
    return (int.from_bytes(salt, "big") / 2**64 + number * GOLDEN) % 1.0


#: Steps whose multiples fill [0, 1) evenly, each alone and all together: square roots of primes.
_STEPS = [sqrt(prime) % 1.0 for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)]


def choice_point(number: int, site: int, offset: float) -> float:
    """Return request ``number``'s point in [0, 1) for its ``site``-th choice.

    Shares are met evenly, also jointly.
    """
    return (offset + number * _STEPS[site % len(_STEPS)]) % 1.0


def choose_path(paths: Sequence[Path], at: float) -> Path:
    """Return the path that owns point ``at`` of [0, 1), divided by rates."""
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
    """Decode a plan. Raises ``ProtocolError`` unless it is one of this version."""
    try:
        plan = _decode(body)
    except UNREADABLE as error:
        raise ProtocolError(
            f"the stored plan cannot be read: {error}; write it again with this build's planner"
        ) from error
    if plan.v != WIRE_VERSION:
        raise ProtocolError(f"the stored plan has version {plan.v}, this build reads {WIRE_VERSION}")
    return plan
