"""Check in a recorded run that tenants cannot harm each other.

The promises are those of docs/security.md. The judge does no I/O.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.chaos.judge import Violation

#: ``OMNIBUS_GATEWAY_TENANT_BYTES`` of these runs.
TENANT_BYTES = 24 << 20
#: Growth of the store by one tenant that fills its account: the server needs more than the bytes that are counted.
STORE_BYTES = 3 * TENANT_BYTES
#: Growth of a gateway: bodies that are parsed, and what the allocator keeps of them.
GATEWAY_BYTES = 384 << 20
#: Seconds in which a small request of another tenant is answered, and in which work of a revoked key stops.
ANSWER_SECONDS, STOP_SECONDS = 20.0, 3.0


@dataclass(frozen=True)
class Attempt:
    """A small request of the tenant that is attacked."""

    name: str
    status: int
    seconds: float


@dataclass
class TenantRecord:
    """Record of a run: answers to attacks, outcomes of the other tenant, memory in bytes."""

    codes: dict[str, Counter[int]] = field(default_factory=dict)
    others: list[Attempt] = field(default_factory=list)
    store_before: int = 0
    store_peak: int = 0
    gateway_before: int = 0
    gateway_peak: int = 0
    stop_seconds: float = 0.0


def judge_tenants(record: TenantRecord, late: float = 0.0) -> list[Violation]:
    """Promises that ``record`` breaks; ``late`` are extra seconds for a busy machine."""
    return [*_check_others(record, late), *_check_memory(record), *_check_stop(record, late)]


def _check_others(record: TenantRecord, late: float) -> Iterator[Violation]:
    for each in record.others:
        if each.status != 200:
            yield Violation("a tenant's part is left to it", f"{each.name}: {each.status} in {each.seconds:.1f} s")
        elif each.seconds > ANSWER_SECONDS + late:
            yield Violation("a tenant's turn comes", f"{each.name} took {each.seconds:.1f} s")
    if not record.others:
        yield Violation("a tenant's turn comes", "the other tenant sent nothing")
    if record.codes.get("delete by url", {}).get(200):
        yield Violation("files belong to their tenant", "another tenant's file was removed")


def _check_memory(record: TenantRecord) -> Iterator[Violation]:
    store_growth, own = record.store_peak - record.store_before, record.gateway_peak - record.gateway_before
    if store_growth > STORE_BYTES:
        yield Violation("the store is bounded", f"it grew by {store_growth >> 20} MiB, {STORE_BYTES >> 20} are allowed")
    if own > GATEWAY_BYTES:
        yield Violation("gateways are bounded", f"one grew by {own >> 20} MiB, {GATEWAY_BYTES >> 20} are allowed")


def _check_stop(record: TenantRecord, late: float) -> Iterator[Violation]:
    if record.stop_seconds > STOP_SECONDS + late:
        yield Violation("a revoked key stops its work", f"it went on for {record.stop_seconds:.1f} s")
