"""Results of measuring options, as they are kept until all are measured; and the settings that they depend on."""

import msgspec

from omnibus.profile import EdgeProfile, OptionProfile


class MeasureSettings(msgspec.Struct, frozen=True):
    """``seconds`` and ``requests`` of a step, ``most`` at a time. The rest of a path has ``others`` replicas of each
    option, and up to ``most_others`` where they hold requests back. ``gpu`` is the type that options run on."""

    seconds: float = 5.0
    requests: int = 16
    most: int = 64
    others: int = 1
    gpu: str = "cpu"
    most_others: int = 4


class CostSample(msgspec.Struct, frozen=True):
    """Mean quantities of requests of one type and size, and the seconds of each component that they cost.

    ``count`` answers to requests of ``role`` gave them, ``share`` is the part of these that has that size; 0: the size
    is none of the workload's. ``short``: answers had one token.
    """

    kind: str
    quantities: dict[str, float]
    seconds: dict[str, float]
    role: tuple[str, ...] = ()
    share: float = 0.0
    count: int = 0
    short: bool = False


class OptionMeasurement(msgspec.Struct, frozen=True):
    """All that measuring one option gave. ``busy`` is its busy share when it was saturated; -1: it does not say.

    ``quantities`` are those of requests one at a time, ``kv`` bytes of keys and values by component: per token, and all
    that there is room for. ``overheads`` are seconds of requests by themselves that no executor took, where the option
    ran all of them.
    """

    option: OptionProfile
    edges: tuple[EdgeProfile, ...] = ()
    samples: tuple[CostSample, ...] = ()
    quantities: dict[str, dict[str, float]] = {}
    busy: float = -1.0
    notes: tuple[str, ...] = ()
    kv: dict[str, tuple[float, float]] = {}
    overheads: tuple[float, ...] = ()
