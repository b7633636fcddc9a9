"""Search in the failed requests of all gateways: those in the store, and those of this gateway."""

from collections import Counter
from typing import Any, NamedTuple

import msgspec

from omnibus.errors import StoreUnavailable
from omnibus.graph import UNREADABLE
from omnibus.store import Store
from omnibus_gateway.http.failures import FailedRequest, FailureLog

#: Limit of the failed requests in one answer.
MAX_LISTED = 500

encode_failure = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(FailedRequest).decode


class FailureFilters(NamedTuple):
    """Search criteria. ``words``, in lower case, are found anywhere. Times are in Unix seconds; 0 is no limit."""

    words: tuple[str, ...] = ()
    model: str = ""
    code: str = ""
    since: float = 0.0
    until: float = 0.0
    limit: int = 100


async def find_failures(store: Store, log: FailureLog, filters: FailureFilters) -> dict[str, Any]:
    """Return failed requests that match, newest first, and their counts by code.

    ``codes`` also counts those that ``limit`` or ``code`` leaves out. ``complete`` is False while the store is
    unavailable: then only failures of this gateway are found.
    """
    failures, complete = list(log), True
    try:
        failures += _decode_all(await store.failures())
    except StoreUnavailable:
        complete = False
    found = {(each.id, each.at): each for each in failures if _matches(each, filters)}
    latest = sorted(found.values(), key=lambda each: -each.at)
    chosen = [each for each in latest if filters.code in ("", each.code)]
    codes = Counter(each.code for each in latest)
    data = msgspec.to_builtins(chosen[: filters.limit])
    return {"data": data, "codes": dict(codes.most_common()), "complete": complete}


def _decode_all(bodies: list[bytes]) -> list[FailedRequest]:
    failures = []
    for body in bodies:
        try:
            failures.append(_decode(body))
        except UNREADABLE:  # of another version
            continue
    return failures


def _matches(failure: FailedRequest, filters: FailureFilters) -> bool:
    if filters.model not in ("", failure.model) or failure.at < filters.since:
        return False
    if filters.until and failure.at > filters.until:
        return False
    text = " ".join(map(str, msgspec.structs.astuple(failure))).lower() if filters.words else ""
    return all(word in text for word in filters.words)
