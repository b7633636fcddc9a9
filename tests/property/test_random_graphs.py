"""Random composite tasks on a real bus match plain Python."""

import asyncio
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest
import uvloop
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.nightly import nightly
from tests.property.drawn import Drawn, LiveDrawn, Log, Request
from tests.property.estate import Estate, estate, plain
from tests.property.oracle import Oracle
from tests.property.programs import Program, programs

pytestmark = pytest.mark.timeout(600)

AT_ONCE = 5
#: Seconds that a batch may take, on however busy a machine.
PATIENCE = 60.0

T = TypeVar("T")


class Loop:
    """An event loop in a separate thread.

    Executors keep sending heartbeats while the next programs are drawn.
    """

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop")
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE * 2)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    """One loop for all examples."""
    made = Loop()
    yield made
    made.close()


@pytest.fixture(scope="module")
def place(loop: Loop, nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Estate]:
    made = estate(nats_url, tmp_path_factory.mktemp("estate"))
    yield loop.run(made.__aenter__())
    loop.run(made.__aexit__(None, None, None))


async def answered(place: Estate, program: Program) -> tuple[list[Any], Log]:
    """Answer of ``program`` as a client reads it, with all outputs."""
    log = Log()
    task = LiveDrawn() if program.live else Drawn()
    async with place.request(seed=program.seed):
        out = await task(Request(program, log))
        [rest] = out["rest"]
        found = [read(result, how) for result, how in [*out["first"], *rest["more"]]]
        return list(await asyncio.gather(*found)), log


async def read(result: Any, how: str) -> Any:
    if how == "iterate":
        return [part async for part in result]
    return plain(await (result.transform(lambda part: part * 2) if how == "transform" else result))


async def agree(place: Estate, program: Program) -> None:
    found, log = await answered(place, program)
    oracle = Oracle(program, log.chosen)

    assert found == oracle.answer()
    assert log.effects == oracle.effects
    assert Counter(log.effects.values()).keys() <= {1}


async def all_agree(place: Estate, drawn: list[Program]) -> None:
    await place.ready()
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for program in drawn:
            group.create_task(agree(place, program))


@pytest.mark.parametrize("graphs", [200, *nightly(2000)])
def test_random_graphs_agree_with_plain_python(loop: Loop, place: Estate, graphs: int):
    @settings(
        max_examples=graphs // AT_ONCE,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(programs(), min_size=AT_ONCE, max_size=AT_ONCE))
    def check(drawn: list[Program]) -> None:
        nonlocal ran
        ran += len(drawn)
        loop.run(all_agree(place, drawn))

    ran = 0
    check()

    assert ran >= graphs
    loop.run(place.settled())
