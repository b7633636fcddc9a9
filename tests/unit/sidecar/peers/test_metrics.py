"""Prometheus metrics of several sidecars, and their panels and alerts."""

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest

from omnibus.errors import NodeUnreachable
from omnibus.metrics import REGISTRY, render_exposition
from omnibus_sidecar import service as metrics
from tests import observed
from tests.unit.sidecar.node import make_deadline, run_sidecar, wait_until
from tests.unit.sidecar.peers.pair import two_nodes


def read_value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(f"omnibus_node_{name}", labels)


async def test_panels_and_alerts_of_links_ask_for_what_a_sidecar_emits(tmp_path: Path):
    async with two_nodes(tmp_path) as (a, b), await a.client() as producer, await b.client() as consumer:
        metrics.register_metrics(b.sidecar.snapshot)
        alert_labels = [("pull_failures_total", "node_unreachable")]
        alert_labels += [("refused_connections_total", reason) for reason in ("unauthorized", "protocol_error")]
        assert [read_value(name, reason=reason) for name, reason in alert_labels] == [0, 0, 0]

        handle = await producer.put(np.ones(1000, np.uint8), invocation="i", deadline=make_deadline())
        await consumer.open_tensor(handle, invocation="i", deadline=make_deadline())
        with pytest.raises(NodeUnreachable):
            await consumer.open_tensor(
                msgspec.structs.replace(handle, node="c"), invocation="i", deadline=make_deadline()
            )
        _, stranger = await asyncio.open_connection("127.0.0.1", b.plane.port)
        stranger.write(b"GET / HTTP/1.1\r\n" * 16)
        await wait_until(lambda: read_value("refused_connections_total", reason="protocol_error") == 1)
        stranger.close()

        assert observed.find_unanswered(observed.read_expressions(observed.LINKS), _scrape_samples()) == []
        assert (read_value("pulled_bytes_total", node="a"), read_value("unreachable", node="c")) == (1000, 1)
        assert read_value("pull_failures_total", reason="node_unreachable") == 1


async def test_a_node_without_others_tells_nothing_of_links(tmp_path: Path):
    async with run_sidecar(tmp_path) as sidecar:
        metrics.register_metrics(sidecar.snapshot)

        assert [name for name in _scrape_samples() if name.startswith("omnibus_node_")] == []


def _scrape_samples() -> observed.Emitted:
    return observed.read_samples([render_exposition().decode()])
