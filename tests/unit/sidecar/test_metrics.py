"""Prometheus metrics of a sidecar's arena."""

from pathlib import Path

import numpy as np

from omnibus.metrics import REGISTRY
from omnibus_sidecar import service as metrics
from tests.unit.sidecar.node import connect_client, make_deadline, run_sidecar


def read_value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"omnibus_arena_{name}", labels)


async def test_the_ledger_is_told_as_it_is(tmp_path: Path):
    async with run_sidecar(tmp_path) as sidecar, await connect_client(tmp_path) as client:
        metrics.register_metrics(sidecar.snapshot)
        handle = await client.put(np.zeros(1000, np.uint8), invocation="i", deadline=make_deadline())

        assert read_value("leases") == read_value("granted_total") == read_value("clients") == 1
        assert (read_value("used_bytes") or 0) >= 1000
        assert read_value("size_bytes") == 1 << 20

        client.release(handle)
        await client.stats()

        assert read_value("leases") == read_value("used_bytes") == 0
        assert read_value("freed_total", reason="released") == 1
        assert read_value("spare_bytes") == read_value("spares_used_total") == read_value("spares_recalled_total") == 0

        for _ in range(2):
            client.release(await client.put(np.zeros(1000, np.uint8), invocation="i", deadline=make_deadline()))
            await client.stats()

        assert read_value("leases") == read_value("used_bytes") == 0
        assert (read_value("spare_bytes"), read_value("spares_used_total")) == (1024 + 64, 1)
        assert (read_value("freed_total", reason="expired"), read_value("freed_total", reason="forced")) == (0, 0)


def test_before_the_start_there_is_nothing_to_tell():
    metrics.register_metrics(dict)

    assert read_value("size_bytes") is None
    assert read_value("freed_total", reason="expired") == 0
