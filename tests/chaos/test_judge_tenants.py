"""The judge of tenants reports exactly the broken promises."""

from collections import Counter
from dataclasses import replace

import pytest

from tests.chaos.judge_tenants import (
    ANSWER_SECONDS,
    GATEWAY_BYTES,
    STOP_SECONDS,
    STORE_BYTES,
    Attempt,
    TenantRecord,
    judge_tenants,
)

GOOD = TenantRecord(
    codes={"delete by url": Counter({404: 9}), "store flood": Counter({200: 1, 413: 5})},
    others=[Attempt("chat", 200, 0.2)],
    store_before=10,
    store_peak=STORE_BYTES,
    gateway_before=10,
    gateway_peak=GATEWAY_BYTES,
    stop_seconds=0.5,
)


def test_a_good_run_breaks_nothing():
    assert judge_tenants(GOOD) == []


@pytest.mark.parametrize(
    ("changes", "promise"),
    [
        ({"others": [Attempt("chat", 429, 0.1)]}, "a tenant's part is left to it"),
        ({"others": [Attempt("chat", 0, 60.0)]}, "a tenant's part is left to it"),
        ({"others": [Attempt("chat", 200, ANSWER_SECONDS + 1)]}, "a tenant's turn comes"),
        ({"others": []}, "a tenant's turn comes"),
        ({"codes": {"delete by url": Counter({404: 3, 200: 1})}}, "files belong to their tenant"),
        ({"store_peak": STORE_BYTES + 11}, "the store is bounded"),
        ({"gateway_peak": GATEWAY_BYTES + 11}, "gateways are bounded"),
        ({"stop_seconds": STOP_SECONDS + 0.1}, "a revoked key stops its work"),
    ],
)
def test_each_broken_promise_is_seen(changes: dict[str, object], promise: str):
    assert [each.promise for each in judge_tenants(replace(GOOD, **changes))] == [promise]
