"""Usage of all recorded requests, summed by tenant, model and currency."""

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import UNSET

from omnibus.bus import Bus
from omnibus.bus.subjects import INVOCATIONS
from omnibus.errors import OmnibusError
from omnibus.recording import records
from omnibus.recording.records import EndRecord

#: Number of records in one read.
READ_BATCH_COUNT = 256


class UsageSum(msgspec.Struct):
    """Sums of one tenant's requests to one model. ``money`` in ``currency`` is of those that have a price."""

    tenant: str
    model: str
    currency: str
    requests: int = 0
    gpu_seconds: float = 0.0
    nbytes: int = 0
    money: float = 0.0


async def sum_usage(bus: Bus, since: float) -> list[UsageSum]:
    """Sum the usage of requests that ended ``since`` then (Unix seconds).

    It includes requests whose records are retained. Tenants with the highest usage are first.
    """
    sums: dict[tuple[str, str, str], UsageSum] = {}
    models: dict[str, str] = {}
    ends: dict[str, EndRecord] = {}
    below = 0
    while True:
        messages = await bus.read_latest(INVOCATIONS, READ_BATCH_COUNT, below)
        latest = 0.0
        for each in reversed(messages):
            below = each.number
            try:
                invocation, end = records.decode_message(each.data)
            except OmnibusError:  # of another version
                continue
            latest = max(latest, end.finished if end is not None else 0.0, invocation.created if invocation else 0.0)
            if end is not None:
                ends.setdefault(end.inv, end)
            if invocation is not None:
                models[invocation.id] = invocation.model
        if not messages or below <= 1 or latest < since:
            break
    for end in _ended_since(ends, since):
        _add_end(sums, end, models.get(end.inv, ""))
    return sorted(sums.values(), key=lambda one: (-one.money, -one.gpu_seconds, one.tenant, one.model))


def _ended_since(ends: Mapping[str, EndRecord], since: float) -> Iterator[EndRecord]:
    return (end for end in ends.values() if end.usage is not None and end.finished >= since)


def _add_end(sums: dict[tuple[str, str, str], UsageSum], end: EndRecord, model: str) -> None:
    usage = end.usage
    if usage is None:
        return
    currency = "" if usage.currency is UNSET else usage.currency
    key = (end.tenant, model, currency)
    total = sums.setdefault(key, UsageSum(*key))
    total.requests += 1
    total.gpu_seconds += usage.gpu_seconds
    total.nbytes += usage.nbytes
    total.money += 0.0 if usage.money is UNSET else usage.money
