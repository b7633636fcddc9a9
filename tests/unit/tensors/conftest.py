"""Fixtures of the tensor tests."""

from collections.abc import AsyncIterator, Iterator

import pytest

from omnibus.tensors.arena import Arena
from tests.unit.tensors.ledgers import SIZE, LedgerDesk
from tests.unit.tensors.pairs import ClientPair, open_pair


@pytest.fixture
async def pair(tmp_path) -> AsyncIterator[ClientPair]:
    async with open_pair(tmp_path) as client_pair:
        yield client_pair


@pytest.fixture
def desk(tmp_path) -> Iterator[LedgerDesk]:
    arena = Arena.create("arena", SIZE, str(tmp_path))
    yield LedgerDesk(arena)
    arena.close()
