"""A house for executors."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.up.house import SupervisorHouse, open_house


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[SupervisorHouse]:
    async with open_house(tmp_path) as house:
        yield house
