"""A dead engine is replaced; until then there is none."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import pytest

from omnibus.errors import StageUnavailable
from omnibus.process.supervise import RestartPolicy
from omnibus_llm.vllm import supervisor as module
from omnibus_llm.vllm.protocol import CacheBlockLayout, Generation, Tokens
from omnibus_llm.vllm.supervisor import EngineSupervisor


class MortalVllmEngine:
    """A fake engine that can die."""

    def __init__(self, fails: bool = False) -> None:
        self._fails = fails
        self.stopped = False
        self.death = asyncio.Event()
        self.layout = CacheBlockLayout("none", 1, 1, 1, 1)
        self.keeps_rows = False

    async def start(self) -> None:
        if self._fails:
            raise RuntimeError("no weights")

    async def generate(self, asked: Generation) -> AsyncGenerator[Tokens, None]:
        yield Tokens([1], "stop")

    async def deliver(self, asked: Generation, consume: Callable[[Tokens], bool]) -> None:
        consume(Tokens([1], "stop"))

    async def wait_for_exit(self) -> None:
        await self.death.wait()

    async def stop(self) -> None:
        self.stopped = True

    def stats(self) -> dict[str, Any]:
        return {}


@pytest.fixture(autouse=True)
def shorten_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESTART_POLICY", RestartPolicy(first=0.001, longest=0.002))


def make_supervisor(*engines: MortalVllmEngine) -> tuple[EngineSupervisor, Iterator[MortalVllmEngine]]:
    left = iter(engines)
    return EngineSupervisor("thinker", lambda: next(left)), left


async def wait_until_serving(keeper: EngineSupervisor) -> None:
    async with asyncio.timeout(10):
        while not keeper.serving:
            await asyncio.sleep(0)


async def test_a_dead_engine_is_stopped_and_replaced() -> None:
    first, second = MortalVllmEngine(), MortalVllmEngine()
    keeper, _ = make_supervisor(first, second)
    await keeper.start()
    assert keeper.engine is first

    first.death.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert not keeper.serving
    with pytest.raises(StageUnavailable) as caught:
        _ = keeper.engine
    assert caught.value.stage == "thinker"
    await wait_until_serving(keeper)
    assert keeper.engine is second
    assert (first.stopped, keeper.restarts) == (True, 1)
    await keeper.close()
    assert second.stopped


async def test_one_that_does_not_start_is_tried_again() -> None:
    first, broken_engines, last = (
        MortalVllmEngine(),
        [MortalVllmEngine(fails=True) for _ in range(3)],
        MortalVllmEngine(),
    )
    keeper, _ = make_supervisor(first, *broken_engines, last)
    await keeper.start()

    first.death.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await wait_until_serving(keeper)

    assert keeper.engine is last
    assert all(engine.stopped for engine in broken_engines)
    await keeper.close()


async def test_a_first_engine_that_does_not_start_is_an_error() -> None:
    broken_engine = MortalVllmEngine(fails=True)
    keeper, _ = make_supervisor(broken_engine)

    with pytest.raises(RuntimeError, match="no weights"):
        await keeper.start()

    assert broken_engine.stopped
    await keeper.close()


async def test_closing_ends_the_attempts() -> None:
    first = MortalVllmEngine()
    keeper, left = make_supervisor(first, *(MortalVllmEngine(fails=True) for _ in range(1000)))
    await keeper.start()
    first.death.set()
    await asyncio.sleep(0.005)

    await keeper.close()

    left_count = len(list(left))
    await asyncio.sleep(0.005)
    assert left_count > 0
    assert not keeper.serving
