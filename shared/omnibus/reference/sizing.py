"""Measured costs of requests by kind, and what a workload of them needs.

The figures are those of ``sizing.json``, which ``python -m tests.bench.sizing`` measures; they are what Omnibus itself
takes, without models: what these take, ``omnibus profile`` measures.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from omnibus.errors import BadRequest
from omnibus.suggestions import did_you_mean

DATA = Path(__file__).with_name("sizing.json")
MIB = 1 << 20
_DAY_SECONDS = 86400.0
#: Share of a core that is planned to be in use, so that short bursts find room.
USED_SHARE = 0.6


class KindCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cost of one request of a kind: milliseconds of CPU by service (executors without their engines), the most bytes
    of the arena, bytes through the bus, in and out, bytes in streams, and bytes of media that it brings."""

    what: str
    cpu_ms: dict[str, float]
    arena_bytes: int
    bus_bytes: int
    disk_bytes: int
    media_bytes: int


class Measurements(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Costs by kind; ``memory_mib`` resident by process, ``idle_cpu_ms`` of all services in a second."""

    machine: str
    requests: int
    memory_mib: dict[str, float]
    idle_cpu_ms: float
    kinds: dict[str, KindCost]


class Sizing(msgspec.Struct, frozen=True):
    """Needs of a workload. ``cores`` by service are busy on average; ``gateways`` and ``total_cores`` have room for
    bursts. ``memory_mib`` is without executors, ``executor_mib`` of each of them without weights. Disk is that of the
    streams of ``keep_days``."""

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
    """The measured figures of this release."""
    return msgspec.json.decode(DATA.read_bytes(), type=Measurements)


def compute_sizing(
    rates: Mapping[str, float], measured: Measurements, *, seconds: float, keep_days: float, tensor_mib: float = 0.0
) -> Sizing:
    """Needs of ``rates``, requests a second by kind, each of which takes ``seconds`` and holds ``tensor_mib`` of
    tensors besides what was measured with tiny models. Raises ``BadRequest`` for an unknown kind."""
    for kind in rates:
        if kind not in measured.kinds:
            raise BadRequest(f"no kind of request {kind!r}{did_you_mean(kind, measured.kinds)}; there is "
                             f"{', '.join(measured.kinds)}")  # fmt: skip
    costs = {kind: measured.kinds[kind] for kind in rates}
    services = dict.fromkeys(name for cost in costs.values() for name in cost.cpu_ms)
    cores = {
        name: sum(rate * costs[kind].cpu_ms.get(name, 0.0) for kind, rate in rates.items()) / 1000 for name in services
    }
    gateways = max(1, -int(-cores.get("gateway", 0.0) // USED_SHARE))
    total = sum(rates.values())
    memory = sum(mib for name, mib in measured.memory_mib.items() if name not in ("executor", "gateway"))
    arena = sum(rate * costs[kind].arena_bytes for kind, rate in rates.items()) * seconds / MIB
    disk = sum(rate * costs[kind].disk_bytes for kind, rate in rates.items()) * keep_days * _DAY_SECONDS / MIB
    return Sizing(
        cores=cores,
        total_cores=sum(cores.values()) / USED_SHARE,
        gateways=gateways,
        memory_mib=memory + gateways * measured.memory_mib["gateway"],
        executor_mib=measured.memory_mib["executor"],
        arena_mib=(arena + total * seconds * tensor_mib) / USED_SHARE,
        disk_mib=disk,
        bus_mib_s=sum(rate * costs[kind].bus_bytes for kind, rate in rates.items()) / MIB,
        machine=measured.machine,
    )
