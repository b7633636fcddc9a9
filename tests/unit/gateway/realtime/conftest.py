"""Gateways whose model hears and speaks."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.gateway.house import OMNI, House, house
from tests.unit.gateway.realtime_house import Caller, calls


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path) as made:
        await made.all_of(OMNI)
        yield made


@pytest.fixture
async def caller(home: House) -> AsyncIterator[Caller]:
    async with calls(home) as made:
        yield made
