"""A gateway with a language model, for tests of messages."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.gateway.house import TEXT, ToyGateway, start_toy_gateway


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[ToyGateway]:
    async with start_toy_gateway(tmp_path) as gateway:
        await gateway.all_of(TEXT)
        yield gateway
