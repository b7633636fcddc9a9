"""Fixtures of the tensor tests."""

from collections.abc import AsyncIterator

import pytest

from tests.unit.tensors.pairs import Pair, pairs


@pytest.fixture
async def pair(tmp_path) -> AsyncIterator[Pair]:
    async with pairs(tmp_path) as found:
        yield found
