"""Gateways with a store, for tests of responses."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from omnibus.store import Store
from tests.unit.gateway.house import TEXT, House, house
from tests.unit.gateway.responses_house import Pair, remember


@pytest.fixture
async def home(tmp_path: Path, store: Store) -> AsyncIterator[House]:
    async with house(tmp_path, store) as made:
        await made.all_of(TEXT)
        yield made


@pytest.fixture
async def memory(tmp_path: Path, store: Store) -> AsyncIterator[House]:
    async with house(tmp_path, store) as made:
        made.serve(TEXT)
        assert made.router.plan is not None
        for option, spec in made.router.plan.models[TEXT].options.items():
            await made.executor(TEXT, option, *spec.components, thinker=remember)
        yield made


@pytest.fixture
async def pair(tmp_path: Path, store: Store) -> AsyncIterator[Pair]:
    async with house(tmp_path, store) as first:
        second = House(first.place, first.settings, store, "other")
        await second.open()
        yield Pair(first, second)
        await second.close()
