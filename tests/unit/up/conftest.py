"""A house for executors."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.up.house import House, opened


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(tmp_path) as house:
        yield house
