"""Gateways for tests of messages: one repeats its input, one answers with reasoning and calls."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tests.unit.gateway.anthropic.thinkers import CHUNKS, RecordingThinker
from tests.unit.gateway.house import TEXT, ToyGateway, start_toy_gateway

Opener = Callable[[RecordingThinker], AbstractAsyncContextManager[ToyGateway]]


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[ToyGateway]:
    async with start_toy_gateway(tmp_path) as gateway:
        await gateway.all_of(TEXT)
        yield gateway


@pytest.fixture
def open_gateway(tmp_path: Path) -> Opener:
    """Open a gateway whose language model is the given thinker."""

    @asynccontextmanager
    async def opened(thinker: RecordingThinker) -> AsyncIterator[ToyGateway]:
        async with start_toy_gateway(tmp_path) as gateway:
            gateway.serve(TEXT)
            assert gateway.router.plan is not None
            for option, spec in gateway.router.plan.models[TEXT].options.items():
                await gateway.executor(TEXT, option, *spec.components, thinker=thinker)
            yield gateway

    return opened


@pytest.fixture
def caller() -> RecordingThinker:
    return RecordingThinker(*CHUNKS, reasoning_tokens=2, cached_tokens=3)


@pytest.fixture
async def tool_gateway(open_gateway: Opener, caller: RecordingThinker) -> AsyncIterator[ToyGateway]:
    async with open_gateway(caller) as gateway:
        yield gateway
