"""Gateways with a model for speech input and output."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.gateway.house import OMNI, House, house
from tests.unit.gateway.realtime_doors import Doors
from tests.unit.gateway.realtime_house import Caller, calls
from tests.unit.gateway.wires import doorway


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path) as made:
        await made.all_of(OMNI)
        yield made


@pytest.fixture
async def caller(home: House) -> AsyncIterator[Caller]:
    async with calls(home) as made:
        yield made


@pytest.fixture
async def doors(tmp_path: Path) -> AsyncIterator[Doors]:
    async with house(tmp_path) as first:
        second = House(first.place, first.settings, None, "other")
        await second.open()
        made = Doors(first, second)
        async with doorway(first) as one, doorway(second) as other:
            made.ports = one.port, other.port
            yield made
        await second.close()
