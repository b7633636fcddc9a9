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

from tests.nightly import mark_nightly
from tests.property.drawn import Drawn, LiveDrawn, Log, WalkRequest
from tests.property.estate import GraphSystem, start_graph_system, to_plain
from tests.property.oracle import Oracle
from tests.property.programs import Program, draw_programs

pytestmark = pytest.mark.timeout(600)

AT_ONCE = 5
#: Seconds that a batch may take, on however busy a machine.
PATIENCE = 60.0

T = TypeVar("T")


class LoopThread:
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
def loop() -> Iterator[LoopThread]:
    """One loop for all examples."""
    thread = LoopThread()
    yield thread
    thread.close()


@pytest.fixture(scope="module")
def graph_system(loop: LoopThread, nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GraphSystem]:
    context = start_graph_system(nats_url, tmp_path_factory.mktemp("estate"))
    yield loop.run(context.__aenter__())
    loop.run(context.__aexit__(None, None, None))


async def run_program(place: GraphSystem, program: Program) -> tuple[list[Any], Log]:
    """Answer of ``program`` as a client reads it, with all outputs."""
    log = Log()
    task = LiveDrawn() if program.live else Drawn()
    async with place.request(seed=program.seed):
        out = await task(WalkRequest(program, log))
        [rest] = out["rest"]
        results = [read_result(result, how) for result, how in [*out["first"], *rest["more"]]]
        return list(await asyncio.gather(*results)), log


async def read_result(result: Any, how: str) -> Any:
    if how == "iterate":
        return [part async for part in result]
    return to_plain(await (result.transform(lambda part: part * 2) if how == "transform" else result))


async def check_agreement(place: GraphSystem, program: Program) -> None:
    actual, log = await run_program(place, program)
    oracle = Oracle(program, log.chosen)

    assert actual == oracle.answer()
    assert log.effects == oracle.effects
    assert Counter(log.effects.values()).keys() <= {1}


async def all_agree(place: GraphSystem, batch: list[Program]) -> None:
    await place.ready()
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for program in batch:
            group.create_task(check_agreement(place, program))


@pytest.mark.parametrize("graphs", [200, *mark_nightly(2000)])
def test_random_graphs_agree_with_plain_python(loop: LoopThread, graph_system: GraphSystem, graphs: int):
    @settings(
        max_examples=graphs // AT_ONCE,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(draw_programs(), min_size=AT_ONCE, max_size=AT_ONCE))
    def check_batch(batch: list[Program]) -> None:
        nonlocal ran
        ran += len(batch)
        loop.run(all_agree(graph_system, batch))

    ran = 0
    check_batch()

    assert ran >= graphs
    loop.run(graph_system.settled())
