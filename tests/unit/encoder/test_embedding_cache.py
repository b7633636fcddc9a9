"""Results cached by content: computed once, within a byte limit, unaffected by other callers' cancellation."""

import asyncio
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from omnibus.errors import BadMedia, StageUnavailable
from omnibus_encoder.embedding_cache import ENTRY_OVERHEAD_BYTES, EmbeddingCache, EncoderResult
from tests.unit.sidecar.node import wait_until

ROWS = 1024  # bytes of an embedding here


class Work:
    """Work that turns read bytes into an array; ``read`` and ``done`` can be blocked."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.reads: list[str] = []
        self.reading = asyncio.Event()
        self.reading.set()
        self.open = asyncio.Event()
        self.open.set()
        self.finished: list[str] = []
        self.results: EmbeddingCache[str] = EmbeddingCache(limit, self, "vision")

    def make_reader(self, name: str) -> Callable[[], Awaitable[str]]:
        async def read_name() -> str:
            self.reads.append(name)
            await self.reading.wait()
            if name == "broken":
                raise BadMedia("the file cannot be read")
            return name

        return read_name

    async def __call__(self, name: str) -> EncoderResult:
        await self.open.wait()
        self.finished.append(name)
        return EncoderResult({"name": name}, np.full(ROWS, len(self.finished), np.uint8))

    async def get(self, name: str) -> EncoderResult:
        return await self.results.get(name.encode(), self.make_reader(name))

    def start_get(self, name: str) -> "asyncio.Task[EncoderResult]":
        return asyncio.create_task(self.get(name))

    def read_stat(self, key: str) -> int:
        return self.results.stats()[key]


async def test_the_second_time_nothing_is_read_or_computed() -> None:
    work = Work()

    first, second = await work.get("a"), await work.get("a")

    assert second is first
    assert (work.reads, work.finished) == (["a"], ["a"])
    assert (work.read_stat("hits"), work.read_stat("misses"), work.read_stat("bytes")) == (
        1,
        1,
        ROWS + ENTRY_OVERHEAD_BYTES,
    )


@pytest.mark.parametrize("limit", [1 << 20, 1])  # cached, and too large for the cache: others may wait for it, too
async def test_what_is_shared_cannot_be_changed(limit: int) -> None:
    result = await Work(limit).get("a")

    with pytest.raises(ValueError, match="read-only"):
        result.embeds[0] = 1


async def test_the_least_recently_used_leave_first() -> None:
    work = Work(limit=2 * (ROWS + ENTRY_OVERHEAD_BYTES))

    for name in ("a", "b", "a", "c", "a", "b"):
        await work.get(name)

    assert work.finished == ["a", "b", "c", "b"]
    assert (work.read_stat("evicted"), work.read_stat("items")) == (2, 2)
    assert work.read_stat("bytes") <= work.results.limit


async def test_what_is_larger_than_all_of_it_is_not_kept_and_makes_nobody_leave() -> None:
    work = Work(limit=ROWS + ENTRY_OVERHEAD_BYTES - 1)

    await work.get("a")
    await work.get("a")

    assert work.finished == ["a", "a"]
    assert (work.read_stat("bytes"), work.read_stat("items")) == (0, 0)


async def test_equal_items_that_come_together_are_computed_once() -> None:
    work = Work()
    work.open.clear()
    tasks = [work.start_get("a") for _ in range(5)]
    await wait_until(lambda: work.read_stat("coalesced") == 4)

    work.open.set()
    results = await asyncio.gather(*tasks)

    assert work.finished == ["a"]
    assert all(each is results[0] for each in results)


@pytest.mark.parametrize("leaver", [0, 1, 2])
async def test_whoever_leaves_the_others_get_their_result(leaver: int) -> None:
    work = Work()
    work.open.clear()
    tasks = [work.start_get("a") for _ in range(3)]
    await wait_until(lambda: work.read_stat("coalesced") == 2)

    tasks[leaver].cancel()
    await asyncio.wait([tasks[leaver]])
    work.open.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(results.pop(leaver), asyncio.CancelledError)
    assert [each.meta for each in results if isinstance(each, EncoderResult)] == [{"name": "a"}] * 2
    assert work.finished == ["a"]


async def test_who_brought_the_bytes_stays_until_they_are_read() -> None:
    work = Work()
    work.reading.clear()
    first, second = work.start_get("a"), work.start_get("a")
    await wait_until(lambda: work.read_stat("coalesced") == 1)

    first.cancel()
    first.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    left_early = first.done()
    work.reading.set()
    results = await asyncio.gather(first, second, return_exceptions=True)

    assert not left_early
    assert isinstance(results[0], asyncio.CancelledError)
    assert isinstance(results[1], EncoderResult)


async def test_when_all_have_left_the_work_stops_and_the_next_begins_anew() -> None:
    work = Work()
    work.open.clear()
    tasks = [work.start_get("a") for _ in range(2)]
    await wait_until(lambda: work.read_stat("coalesced") == 1)

    for each in tasks:
        each.cancel()
    await asyncio.wait(tasks)
    work.open.set()
    result = await work.get("a")

    assert result.meta == {"name": "a"}
    assert (work.reads, work.finished) == (["a", "a"], ["a"])


async def test_a_failure_is_told_to_all_who_wait_and_is_not_kept() -> None:
    work = Work()

    results = await asyncio.gather(*(work.start_get("broken") for _ in range(3)), return_exceptions=True)
    with pytest.raises(BadMedia):
        await work.get("broken")

    assert [type(each) for each in results] == [BadMedia] * 3
    assert work.reads == ["broken"] * 2
    assert work.read_stat("items") == 0


async def test_closing_tells_who_waits_even_before_the_work_has_begun() -> None:
    work = Work()
    work.open.clear()
    waits = work.start_get("a")
    await wait_until(lambda: work.reads == ["a"])
    fresh = work.start_get("b")
    await asyncio.sleep(0)

    await work.results.close()
    outcomes = await asyncio.wait_for(asyncio.gather(waits, fresh, return_exceptions=True), 5)

    assert [type(each) for each in outcomes] == [StageUnavailable] * 2
