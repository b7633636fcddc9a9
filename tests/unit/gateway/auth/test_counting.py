"""Gateways count each other, with and without API keys. The count is the number of answers to await about a missing
file.
"""

from pathlib import Path

import msgspec
import pytest

from omnibus.bus import subjects
from omnibus.bus.messages import GatewayStatus
from omnibus.settings import GatewaySettings, StoreSettings
from omnibus.store import Store
from omnibus_gateway.auth import tenancy as tenancy_module
from omnibus_gateway.auth.tenancy import Tenancy
from tests.unit.gateway.house import start_toy_gateway
from tests.unit.sidecar.node import wait_until


async def test_without_keys_gateways_report_and_count_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tenancy_module, "GATEWAY_HEARTBEAT_SECONDS", 0.01)
    beats: list[bool] = []
    async with start_toy_gateway(tmp_path) as home:
        tenancy = Tenancy(GatewaySettings(), Store(StoreSettings(url="redis://127.0.0.1:1", timeout=0.2)), home.router)
        await tenancy.startup(home.bus, lambda: beats.append(True))

        def publish_status(state: str) -> None:
            status = GatewayStatus("other", 1, 1000.0, state)
            home.bus.publish(subjects.event_subject(subjects.GATEWAY), msgspec.json.encode(status))

        assert (tenancy.on, tenancy.peers.count) == (False, 1)
        publish_status("ready")
        await wait_until(lambda: tenancy.peers.count == 2)
        publish_status("gone")
        await wait_until(lambda: tenancy.peers.count == 1)
        await wait_until(lambda: len(beats) > 2)
        await tenancy.shutdown()
