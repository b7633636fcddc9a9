"""Fixtures of the tensor tests."""

from collections.abc import AsyncIterator, Iterator

import pytest

from omnibus.tensors.arena import Arena
from tests.unit.tensors.ledgers import SIZE, Desk
from tests.unit.tensors.pairs import Pair, pairs


@pytest.fixture
async def pair(tmp_path) -> AsyncIterator[Pair]:
    async with pairs(tmp_path) as found:
        yield found


@pytest.fixture
def desk(tmp_path) -> Iterator[Desk]:
    arena = Arena.create("arena", SIZE, str(tmp_path))
    yield Desk(arena)
    arena.close()
