"""Every bus that there is."""

from collections.abc import AsyncIterator

import pytest

from omnibus.bus import Bus
from omnibus.bus.memory import MemoryBus
from omnibus.bus.nats import NatsBus
from omnibus.settings import BusSettings
from tests.contract.buses import LIMIT


@pytest.fixture(params=["memory", "nats"])
def url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("nats_url") if request.param == "nats" else ""


@pytest.fixture
async def bus(url: str) -> AsyncIterator[Bus]:
    settings = BusSettings(url=url, max_payload=LIMIT)
    made: Bus = await NatsBus.connect(settings, "test") if url else MemoryBus(settings)
    yield made
    await made.drain()
