"""A node of arithmetic executors for the tests of this directory."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.executor.arithmetic import Place, open_place


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Place]:
    async with open_place(tmp_path) as node:
        yield node
