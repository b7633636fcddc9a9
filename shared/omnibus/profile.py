"""Measurements of a model: the file that the profiler writes and the planner reads. Data and checks, no I/O.

{"model": "qwen", "family": "qwen2_5_vl", "components": ["vision", "thinker"], "order": [["vision", "thinker"]],
 "types": {"vision+thinker": {"components": ["vision", "thinker"], "share": 0.6,
                              "quantities": {"image_tokens": 650, "prompt_tokens": 700, "completion_tokens": 130}},
           "thinker": {"components": ["thinker"], "share": 0.4, "quantities": {"prompt_tokens": 570, ...}}},
 "options": {"E":  {"components": ["vision"], "service": "encoder", "gpus": 1, "rate": 9.1, "start_s": 20,
                    "work": [{"type": "vision+thinker", "components": ["vision"], "seconds": 0.18}]},
             "L":  {...}, "EL": {...}},
 "lines": {"vision": {"base": 0.01, "per": {"image_tokens": 0.0002}}, ...}}

Seconds are those of one replica that is busy all the time, per request: the inverse of a throughput. A
*role* is the components of a request that an option runs; others of its components were done before, or
are not used.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from omnibus.errors import BadRequest
from omnibus.graph import UNREADABLE

#: Version of the file's form.
VERSION = 1

#: Sums over requests that gateways count, per request type: tokens that were read and written, seconds of speech.
QUANTITIES = (
    "prompt_tokens",
    "completion_tokens",
    "image_tokens",
    "video_tokens",
    "audio_tokens",
    "speech_seconds",
)


class CostLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of a component per request: ``base`` and so much ``per`` unit of each quantity."""

    base: float = 0.0
    per: dict[str, float] = {}

    def seconds(self, quantities: Mapping[str, float]) -> float:
        """Of a request with these mean ``quantities``."""
        return self.base + sum(each * quantities.get(name, 0.0) for name, each in self.per.items())


class RoleCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cost for one replica of a request of ``type`` (empty: of any) when its role is ``components``.

    ``seconds`` under full load, ``latency`` in seconds when nothing else runs, ``first_token`` those of the latency
    until the first token of a text that the role ends with (0: not measured).
    """

    components: tuple[str, ...]
    seconds: float
    type: str = ""
    latency: float = 0.0
    first_token: float = 0.0


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One load: requests at a time, req/s served, and 99th percentiles in seconds. 0: there was nothing to measure.

    ``first_token``, ``token`` (between two), ``first_audio``, ``done``; ``real_time`` is seconds needed per
    second of speech.
    """

    at_once: int
    rate: float
    done: float
    median: float = 0.0
    first_token: float = 0.0
    token: float = 0.0
    first_audio: float = 0.0
    real_time: float = 0.0


class OptionProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A deployment option as it was measured, or as it is estimated (``rate`` 0 and no ``work``).

    One replica takes ``gpus`` of type ``gpu``, split into groups of ``tp`` (0: all in one). Type ``cpu`` takes none
    of a machine's GPUs: its ``gpus`` are places for executors. ``batch`` is OMNIBUS_EXECUTOR_BATCH (0: as it is set
    where it runs). ``rate`` is in req/s of the whole mix, also of
    those requests that skip the option (Algorithm 3). ``start_s`` is seconds until a new replica is ready,
    ``memory_gb`` what it then takes, ``gpu_memory_gb`` the most of GPUs (0: not measured), ``weights_gb`` the part
    that are weights. ``checkpoint``, ``dtype`` and ``vllm`` are those of ``plan.DeploymentOption`` that it was measured
    with: quantised weights or guessed tokens cost other seconds, so it is deployed with them as well.
    """

    components: tuple[str, ...]
    service: str = ""
    engine: str = ""
    gpus: Annotated[int, msgspec.Meta(ge=1)] = 1
    gpu: str = ""
    tp: int = 0
    price: float | None = None
    rate: float = 0.0
    start_s: float = 1.0
    memory_gb: float = 0.0
    weights_gb: float = 0.0
    work: tuple[RoleCost, ...] = ()
    curve: tuple[Point, ...] = ()
    batch: int = 0
    gpu_memory_gb: float = 0.0
    checkpoint: str = ""
    dtype: str = ""
    vllm: dict[str, str | int | float | bool] | UnsetType = UNSET

    @property
    def is_measured(self) -> bool:
        return self.rate > 0 or bool(self.work)

    @property
    def has_latencies(self) -> bool:
        """True if requests alone were measured as well: only both together say what a batch of any size takes."""
        return bool(self.work) and all(each.latency > 0 for each in self.work)


class TypeProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request type in the workload that was measured: its share, and means of ``QUANTITIES`` per request."""

    components: tuple[str, ...]
    share: float
    quantities: dict[str, float] = {}


class EdgeProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Bytes per request that go from one component to another when different executors run them.

    ``rows`` are those of a tensor that grows while it is read, or codes of speech, per request; ``bunch`` is how many
    of them the largest message brings. 0: nothing grows, or nobody measured it.
    """

    source: str
    target: str
    bytes: float
    type: str = ""
    rows: float = 0.0
    bunch: float = 0.0


class KeyValues(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Memory for keys and values: GB per token, and of a GPU the GB that there are (TriInfer, Algorithm 2)."""

    component: str
    gb_per_token: float
    memory_gb: float


class ModelProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that the planner knows of a model. ``order`` says which component runs before which.

    ``overhead_s`` is seconds of a request that no component takes, when nothing else runs: gateway, bus and client.
    """

    model: str
    family: str
    components: tuple[str, ...]
    types: dict[str, TypeProfile]
    options: dict[str, OptionProfile]
    order: tuple[tuple[str, str], ...] = ()
    lines: dict[str, CostLine] = {}
    edges: tuple[EdgeProfile, ...] = ()
    kv: KeyValues | None = None
    checkpoint: str = ""
    created: float = 0.0
    machine: str = ""
    workload: str = ""
    overhead_s: float = 0.0
    v: int = VERSION


class _StoredProfile(ModelProfile, frozen=True, forbid_unknown_fields=True):
    """A profile as it was written: builds before had factors of options in it, which were never filled there."""

    learned: dict[str, object] = {}


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_StoredProfile).decode


def encode_profile(profile: ModelProfile) -> bytes:
    return _encode(profile)


def decode_profile(body: bytes, name: str = "the profile") -> ModelProfile:
    """Raises ``BadRequest`` that names the file and its first fault."""
    try:
        fields = msgspec.structs.asdict(_decode(body))
    except UNREADABLE as error:
        raise BadRequest(f"{name} is no profile: {error}; write it with `omnibus profile`") from error
    del fields["learned"]
    profile = ModelProfile(**fields)
    if profile.v != VERSION:
        raise BadRequest(f"{name} has version {profile.v}, this build reads {VERSION}: measure again")
    for what, value in _named_numbers(profile):
        if not (math.isfinite(value) and value >= 0):
            raise BadRequest(f"{name}: {what} is {value}: it must be a finite number, 0 or more")
    for what, parts in _named_components(profile):
        unknown = sorted({*parts} - {*profile.components})
        if unknown or not parts:
            named = ", ".join(unknown) or "no component"
            raise BadRequest(f"{name}: {what} names {named}; there is {', '.join(profile.components)}")
    return profile


def _named_numbers(profile: ModelProfile) -> Iterator[tuple[str, float]]:
    for kind, each in profile.types.items():
        yield f"the share of {kind}", each.share
        yield from ((f"{quantity} of {kind}", value) for quantity, value in each.quantities.items())
    for option, measured in profile.options.items():
        for field in ("rate", "start_s", "memory_gb", "weights_gb", "gpu_memory_gb", "batch"):
            yield f"{field} of option {option}", getattr(measured, field)
        yield f"price of option {option}", measured.price or 0.0
        for work in measured.work:
            yield f"seconds of option {option}", work.seconds
            yield f"latency of option {option}", work.latency
            yield f"first_token of option {option}", work.first_token
        for point in measured.curve:
            yield from ((f"{field} of option {option}", getattr(point, field)) for field in point.__struct_fields__)
    for component, line in profile.lines.items():
        yield f"base of {component}", line.base
        yield from ((f"seconds per {quantity} of {component}", value) for quantity, value in line.per.items())
    yield "overhead_s", profile.overhead_s
    yield from ((f"bytes from {edge.source} to {edge.target}", edge.bytes) for edge in profile.edges)
    if profile.kv is not None:
        yield "gb_per_token of kv", profile.kv.gb_per_token
        yield "memory_gb of kv", profile.kv.memory_gb


def _named_components(profile: ModelProfile) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield from ((f"request type {name}", each.components) for name, each in profile.types.items())
    yield from ((f"the order {' before '.join(pair)}", pair) for pair in profile.order)
    for name, option in profile.options.items():
        yield f"option {name}", option.components
        yield from ((f"a role of option {name}", work.components) for work in option.work)
    yield from (("a line", (component,)) for component in profile.lines)
    yield from (("an edge", (edge.source, edge.target)) for edge in profile.edges)
