"""Prometheus metrics of a sidecar's arena."""

from pathlib import Path

import numpy as np

from omnibus.metrics import REGISTRY
from omnibus_sidecar import metrics
from tests.unit.sidecar.node import running
from tests.unit.sidecar.test_server import connect, soon


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"omnibus_arena_{name}", labels)


async def test_the_ledger_is_told_as_it_is(tmp_path: Path):
    async with running(tmp_path) as sidecar, await connect(tmp_path) as client:
        metrics.register_metrics(sidecar.snapshot)
        handle = await client.put(np.zeros(1000, np.uint8), invocation="i", deadline=soon())

        assert value("leases") == value("granted_total") == value("clients") == 1
        assert (value("used_bytes") or 0) >= 1000
        assert value("size_bytes") == 1 << 20

        client.release(handle)
        await client.stats()

        assert value("leases") == value("used_bytes") == 0
        assert value("freed_total", reason="released") == 1
        assert value("spare_bytes") == value("spares_used_total") == value("spares_recalled_total") == 0

        for _ in range(2):
            client.release(await client.put(np.zeros(1000, np.uint8), invocation="i", deadline=soon()))
            await client.stats()

        assert value("leases") == value("used_bytes") == 0
        assert (value("spare_bytes"), value("spares_used_total")) == (1024 + 64, 1)
        assert (value("freed_total", reason="expired"), value("freed_total", reason="forced")) == (0, 0)


def test_before_the_start_there_is_nothing_to_tell():
    metrics.register_metrics(dict)

    assert value("size_bytes") is None
    assert value("freed_total", reason="expired") == 0
