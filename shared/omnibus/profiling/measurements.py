"""Results of measuring options, kept until all are measured, and their settings."""

import msgspec

from omnibus.profile import EdgeProfile, OptionProfile


class MeasureSettings(msgspec.Struct, frozen=True):
    """Settings of the measurements.

    A step lasts ``seconds`` at least and has ``requests`` at least, with ``most`` at a time. Each option of the rest of
    a path has ``others`` replicas, or up to ``most_others`` if it limits the rate. ``gpu`` is the type of GPU of the
    options.
    """

    seconds: float = 5.0
    requests: int = 16
    most: int = 64
    others: int = 1
    gpu: str = "cpu"
    most_others: int = 4


class CostSample(msgspec.Struct, frozen=True):
    """Mean quantities of requests of one type and size, and components' seconds.

    The means are of ``count`` answers to requests of ``role``. ``share`` is the part of the role's requests that have
    this size, or 0 if the workload does not have this size. ``short`` answers have one token.
    """

    kind: str
    quantities: dict[str, float]
    seconds: dict[str, float]
    role: tuple[str, ...] = ()
    share: float = 0.0
    count: int = 0
    short: bool = False


class OptionMeasurement(msgspec.Struct, frozen=True):
    """All measurements of one option.

    ``busy`` is its busy share under full load, or -1 if it reports none. ``quantities`` are those of requests sent one
    at a time. ``kv`` has the bytes of keys and values by component: per token, and the capacity. ``overheads`` are the
    seconds of single requests outside executors, measured if the option ran all their components.
    """

    option: OptionProfile
    edges: tuple[EdgeProfile, ...] = ()
    samples: tuple[CostSample, ...] = ()
    quantities: dict[str, dict[str, float]] = {}
    busy: float = -1.0
    notes: tuple[str, ...] = ()
    kv: dict[str, tuple[float, float]] = {}
    overheads: tuple[float, ...] = ()
