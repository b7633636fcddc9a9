"""Gateways with a store, for tests of responses."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from omnibus.store import Store
from tests.unit.gateway.anthropic.conftest import open_gateway
from tests.unit.gateway.house import TEXT, ToyGateway, start_toy_gateway
from tests.unit.gateway.responses_house import ResponsesPair, echo_messages


@pytest.fixture
async def home(tmp_path: Path, store: Store) -> AsyncIterator[ToyGateway]:
    async with start_toy_gateway(tmp_path, store) as gateway:
        await gateway.all_of(TEXT)
        yield gateway


@pytest.fixture
async def memory(tmp_path: Path, store: Store) -> AsyncIterator[ToyGateway]:
    async with start_toy_gateway(tmp_path, store) as gateway:
        gateway.serve(TEXT)
        assert gateway.router.plan is not None
        for option, spec in gateway.router.plan.models[TEXT].options.items():
            await gateway.executor(TEXT, option, *spec.components, thinker=echo_messages)
        yield gateway


@pytest.fixture
async def pair(tmp_path: Path, store: Store) -> AsyncIterator[ResponsesPair]:
    async with start_toy_gateway(tmp_path, store) as first:
        second = ToyGateway(first.place, first.settings, store, "other")
        await second.open()
        yield ResponsesPair(first, second)
        await second.close()


__all__ = ["open_gateway"]
