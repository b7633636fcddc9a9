"""Measured costs of requests by kind, and the needs of a workload.

``python -m tests.bench.sizing`` measures the figures in ``sizing.json``. They are the costs of Omnibus itself, without
models. ``omnibus profile`` measures those of models.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from omnibus.errors import BadRequest
from omnibus.suggestions import did_you_mean

DATA = Path(__file__).with_name("sizing.json")
MIB = 1 << 20
_DAY_SECONDS = 86400.0
#: Planned use of a core, which leaves capacity for short bursts.
USED_SHARE = 0.6


class KindCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Costs of one request of a kind.

    ``cpu_ms`` are milliseconds of CPU by service, with executors but without their engines. ``arena_bytes`` is the most
    bytes of the arena. ``bus_bytes`` are bytes in and out of the bus, ``disk_bytes`` bytes in streams, and
    ``media_bytes`` the bytes of media in the request.
    """

    what: str
    cpu_ms: dict[str, float]
    arena_bytes: int
    bus_bytes: int
    disk_bytes: int
    media_bytes: int


class Measurements(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Costs by kind. ``memory_mib`` is resident memory by process, ``idle_cpu_ms`` that of all services in a second."""

    machine: str
    requests: int
    memory_mib: dict[str, float]
    idle_cpu_ms: float
    kinds: dict[str, KindCost]


class Sizing(msgspec.Struct, frozen=True):
    """Needs of a workload.

    ``cores`` by service are busy on average. ``gateways`` and ``total_cores`` include capacity for bursts.
    ``memory_mib`` excludes executors; ``executor_mib`` is that of each executor without weights. ``disk_mib`` is that
    of the streams of ``keep_days``.
    """

    cores: dict[str, float]
    total_cores: float
    gateways: int
    memory_mib: float
    executor_mib: float
    arena_mib: float
    disk_mib: float
    bus_mib_s: float
    machine: str


def read_measurements() -> Measurements:
    """Return the measured figures of this release."""
    return msgspec.json.decode(DATA.read_bytes(), type=Measurements)


def compute_sizing(
    rates: Mapping[str, float], measurements: Measurements, *, seconds: float, keep_days: float, tensor_mib: float = 0.0
) -> Sizing:
    """Return the needs of ``rates``, in requests per second by kind.

    Each request takes ``seconds``. It needs ``tensor_mib`` of tensors in addition to the measurements with tiny models.
    Raises ``BadRequest`` for an unknown kind.
    """
    for kind in rates:
        if kind not in measurements.kinds:
            raise BadRequest(f"unknown kind of request {kind!r}{did_you_mean(kind, measurements.kinds)}; there is "
                             f"{', '.join(measurements.kinds)}")  # fmt: skip
    costs = {kind: measurements.kinds[kind] for kind in rates}
    services = dict.fromkeys(name for cost in costs.values() for name in cost.cpu_ms)
    cores = {
        name: sum(rate * costs[kind].cpu_ms.get(name, 0.0) for kind, rate in rates.items()) / 1000 for name in services
    }
    gateways = max(1, -int(-cores.get("gateway", 0.0) // USED_SHARE))
    total = sum(rates.values())
    memory = sum(mib for name, mib in measurements.memory_mib.items() if name not in ("executor", "gateway"))
    arena = sum(rate * costs[kind].arena_bytes for kind, rate in rates.items()) * seconds / MIB
    disk = sum(rate * costs[kind].disk_bytes for kind, rate in rates.items()) * keep_days * _DAY_SECONDS / MIB
    return Sizing(
        cores=cores,
        total_cores=sum(cores.values()) / USED_SHARE,
        gateways=gateways,
        memory_mib=memory + gateways * measurements.memory_mib["gateway"],
        executor_mib=measurements.memory_mib["executor"],
        arena_mib=(arena + total * seconds * tensor_mib) / USED_SHARE,
        disk_mib=disk,
        bus_mib_s=sum(rate * costs[kind].bus_bytes for kind, rate in rates.items()) / MIB,
        machine=measurements.machine,
    )
