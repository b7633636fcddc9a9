"""Random sequences of a session's events, checked against an independent model.

They include disconnects. Every event gets its answer or an error that names it, and nothing is leaked.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnibus.executor.runner import Job
from omnibus.structured.calls import call_head
from omnibus_gateway.realtime import conversation
from tests.nightly import mark_nightly
from tests.unit.gateway.house import OMNI, ToyGateway, start_toy_gateway
from tests.unit.gateway.realtime.test_early_answers import diff_outcomes, read_outcomes
from tests.unit.gateway.realtime_operations import OPERATIONS
from tests.unit.gateway.realtime_sequence import FEW_BYTES, MOST_ITEMS, PATIENCE, Sequence

WORDS = [f"word{number} " for number in range(6)]


async def write_words(job: Job) -> None:
    """Write words one by one after the known ones; with a tool, call it."""
    first = len(job.resume_state("text").get("ids", ()))
    count = min(len(WORDS), job.inputs["params"]["max_tokens"] or len(WORDS))
    rows = None
    if job.has_consumer("rows"):
        await job.put("prompt", {}, np.zeros((3, 4), np.float32))
        await job.put("layout", {}, np.zeros((3, 1), np.int64))
        rows = await job.open_rows("rows", count, 4, "float32")
    for ids in [list(range(first)), *([number] for number in range(first, count))]:
        if ids:
            if rows is not None:
                rows.write(np.repeat(np.array(ids, np.float32)[:, None], 4, 1))
            await job.send("text", {"text": "".join(WORDS[id] for id in ids), "ids": ids})
            await asyncio.sleep(0.002)
    if job.inputs["params"].get("tools"):
        await job.send("text", {"calls": call_head("weather") + '{"city":"Rome"}'})
    if rows is not None:
        job.close("rows")
    usage = {"prompt_tokens": 5, "completion_tokens": count}
    job.close("text", {"finish_reason": "length" if count < len(WORDS) else "stop", "usage": usage})


@asynccontextmanager
async def start_gateway(directory: Path) -> AsyncIterator[ToyGateway]:
    async with start_toy_gateway(directory, within=3600.0) as home:
        home.serve(OMNI)
        assert home.router.plan is not None
        for option, spec in home.router.plan.models[OMNI].options.items():
            await home.executor(OMNI, option, *spec.components, thinker=write_words)
        yield home


class Background:
    """A house on a separate event loop for one example after another."""

    def __init__(self, directory: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready: asyncio.Future[ToyGateway] = self._loop.create_future()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run_gateway(directory),))
        self._thread.start()
        self.home = self.run_coroutine(self._wait_ready())

    async def _run_gateway(self, directory: Path) -> None:
        async with start_gateway(directory) as home:
            self._ready.set_result(home)
            await self._stop.wait()

    async def _wait_ready(self) -> ToyGateway:
        return await self._ready

    def run_coroutine(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE * 10)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)
        self._loop.close()


@pytest.fixture(scope="module")
def background(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversation, "MAX_ITEMS", MOST_ITEMS)
        gateway_thread = Background(tmp_path_factory.mktemp("any"))
        yield gateway_thread
        gateway_thread.run_coroutine(gateway_thread.home.emptied())
        gateway_thread.close()


@pytest.mark.parametrize("count", [150, *mark_nightly(10_000)])
@pytest.mark.timeout(3600)
def test_each_event_of_any_sequence_has_its_answer_or_an_error_that_names_it(background: Background, count: int):
    async def play_operations(operations: list[tuple[Any, ...]], most: int) -> None:
        await Sequence(background.home, most).play(operations)

    @settings(max_examples=count, deadline=None, derandomize=True, database=None,
              suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
    @given(st.lists(OPERATIONS, max_size=24), st.sampled_from([1 << 30, 1 << 30, FEW_BYTES]))
    def any_sequence(operations: list[tuple[Any, ...]], most: int) -> None:
        background.run_coroutine(play_operations(operations, most))

    before = read_outcomes()
    any_sequence()
    assert diff_outcomes(before).keys() >= {"used", "dropped"}, "no answer was begun early, or none dropped"
