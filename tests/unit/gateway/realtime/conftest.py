"""Gateways with a model for speech input and output."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.gateway.house import OMNI, ToyGateway, start_toy_gateway
from tests.unit.gateway.realtime_doors import Doors
from tests.unit.gateway.realtime_house import RealtimeCaller, open_realtime_call
from tests.unit.gateway.wires import open_doorway


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[ToyGateway]:
    async with start_toy_gateway(tmp_path) as gateway:
        await gateway.all_of(OMNI)
        yield gateway


@pytest.fixture
async def caller(home: ToyGateway) -> AsyncIterator[RealtimeCaller]:
    async with open_realtime_call(home) as connection:
        yield connection


@pytest.fixture
async def doors(tmp_path: Path) -> AsyncIterator[Doors]:
    async with start_toy_gateway(tmp_path) as first:
        second = ToyGateway(first.place, first.settings, None, "other")
        await second.open()
        door_pair = Doors(first, second)
        async with open_doorway(first) as one, open_doorway(second) as other:
            door_pair.ports = one.port, other.port
            yield door_pair
        await second.close()
