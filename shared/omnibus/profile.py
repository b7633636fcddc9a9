"""Measurements of a model: the profiler writes them, the planner reads them. Data and checks, no I/O.

{"model": "qwen", "family": "qwen2_5_vl", "components": ["vision", "thinker"], "order": [["vision", "thinker"]],
 "types": {"vision+thinker": {"components": ["vision", "thinker"], "share": 0.6,
                              "quantities": {"image_tokens": 650, "prompt_tokens": 700, "completion_tokens": 130}},
           "thinker": {"components": ["thinker"], "share": 0.4, "quantities": {"prompt_tokens": 570, ...}}},
 "options": {"E":  {"components": ["vision"], "service": "encoder", "gpus": 1, "rate": 9.1, "start_s": 20,
                    "work": [{"type": "vision+thinker", "components": ["vision"], "seconds": 0.18}]},
             "L":  {...}, "EL": {...}},
 "lines": {"vision": {"base": 0.01, "per": {"image_tokens": 0.0002}}, ...}}

Seconds are those of one replica that is busy all the time, per request: the inverse of a throughput. A *role* is the
components of a request that an option runs. Its other components ran earlier, or are not used.
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

#: Sums over requests that gateways count, per request type: tokens read and written, seconds of speech.
QUANTITIES = (
    "prompt_tokens",
    "completion_tokens",
    "image_tokens",
    "video_tokens",
    "audio_tokens",
    "speech_seconds",
)


class CostLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of a component per request: ``base``, and seconds ``per`` unit of each quantity."""

    base: float = 0.0
    per: dict[str, float] = {}

    def seconds(self, quantities: Mapping[str, float]) -> float:
        """Return the seconds of a request with these mean ``quantities``."""
        return self.base + sum(each * quantities.get(name, 0.0) for name, each in self.per.items())


class RoleCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cost for one replica of a request of ``type`` (empty: any) whose role is ``components``.

    ``seconds`` is the cost under full load. ``latency`` is in seconds when nothing else runs. ``first_token`` is the
    part of it until the first token, if the role ends with text (0: not measured).
    """

    components: tuple[str, ...]
    seconds: float
    type: str = ""
    latency: float = 0.0
    first_token: float = 0.0


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One load: requests at a time, req/s served, and 99th percentiles in seconds. 0: not measured.

    ``first_token``, ``token`` (between two), ``first_audio``, ``done``; ``real_time`` is seconds needed per second of
    speech.
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
    """A deployment option, measured or estimated (``rate`` 0 and no ``work``).

    One replica takes ``gpus`` of type ``gpu``, split into groups of ``tp`` (0: all in one). Type ``cpu`` takes none of
    a machine's GPUs: its ``gpus`` are places for executors. ``batch`` is OMNIBUS_EXECUTOR_BATCH (0: the executor's
    environment sets it). ``rate`` is in req/s of the whole mix, including requests that skip the option (Algorithm 3).
    ``start_s`` is the seconds until a new replica is ready. ``memory_gb`` is its memory, ``gpu_memory_gb`` its peak GPU
    memory (0: not measured), ``weights_gb`` the part that are weights. ``checkpoint``, ``dtype`` and ``vllm`` are those
    of ``plan.DeploymentOption`` during the measurement. Quantised weights or speculative tokens change the seconds, so
    the option is deployed with the same ones.
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
        """True if single requests were measured as well: both together give the cost of any batch size."""
        return bool(self.work) and all(each.latency > 0 for each in self.work)


class TypeProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request type in the measured workload: its share, and means of ``QUANTITIES`` per request."""

    components: tuple[str, ...]
    share: float
    quantities: dict[str, float] = {}


class EdgeProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Bytes per request from one component to another in different executors.

    ``rows`` are those of a tensor that grows while it is read, or codes of speech, per request. ``bunch`` is the number
    of rows in the largest message. 0 means that nothing grows, or it was not measured.
    """

    source: str
    target: str
    bytes: float
    type: str = ""
    rows: float = 0.0
    bunch: float = 0.0


class KeyValues(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Memory for keys and values: GB per token, and available GB of a GPU (TriInfer, Algorithm 2)."""

    component: str
    gb_per_token: float
    memory_gb: float


class ModelProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All data of the planner on a model. ``order`` has pairs of a component and its successor.

    ``overhead_s`` is the seconds of a single request outside components: gateway, bus and client.
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
    """A profile in its stored form: earlier builds wrote factors of options, which were never filled."""

    learned: dict[str, object] = {}


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_StoredProfile).decode


def encode_profile(profile: ModelProfile) -> bytes:
    return _encode(profile)


def decode_profile(body: bytes, name: str = "the profile") -> ModelProfile:
    """Decode a profile. Raises ``BadRequest`` with the file ``name`` and its first error."""
    try:
        fields = msgspec.structs.asdict(_decode(body))
    except UNREADABLE as error:
        raise BadRequest(f"{name} is not a profile ({error}): write it with `omnibus profile`") from error
    del fields["learned"]
    profile = ModelProfile(**fields)
    if profile.v != VERSION:
        raise BadRequest(f"{name} has version {profile.v}, this build reads {VERSION}: measure again")
    for place, value in _named_numbers(profile):
        if not (math.isfinite(value) and value >= 0):
            raise BadRequest(f"{name}: {place} is {value}: it must be a finite number, 0 or more")
    for place, parts in _named_components(profile):
        unknown = sorted({*parts} - {*profile.components})
        if unknown or not parts:
            unknown_names = ", ".join(unknown) or "no component"
            raise BadRequest(f"{name}: {place} names {unknown_names}, not one of {', '.join(profile.components)}")
    return profile


def _named_numbers(profile: ModelProfile) -> Iterator[tuple[str, float]]:
    for kind, each in profile.types.items():
        yield f"the share of {kind}", each.share
        yield from ((f"{quantity} of {kind}", value) for quantity, value in each.quantities.items())
    for option, option_profile in profile.options.items():
        for field in ("rate", "start_s", "memory_gb", "weights_gb", "gpu_memory_gb", "batch"):
            yield f"{field} of option {option}", getattr(option_profile, field)
        yield f"price of option {option}", option_profile.price or 0.0
        for work in option_profile.work:
            yield f"seconds of option {option}", work.seconds
            yield f"latency of option {option}", work.latency
            yield f"first_token of option {option}", work.first_token
        for point in option_profile.curve:
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
