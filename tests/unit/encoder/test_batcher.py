"""Batching of waiting items, and isolation of a failing item."""

import asyncio
from collections.abc import Sequence

import pytest

from omnibus.errors import StageUnavailable
from omnibus_encoder.media_encoder import Batcher
from omnibus_models.contract import Prepared


class Doubler:
    """Work that a test can pause: doubles ``n_tokens``, and fails the whole batch on a negative one."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.busy = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, items: Sequence[Prepared]) -> list[int]:
        numbers = [item.meta["n_tokens"] for item in items]
        self.batches.append(numbers)
        self.busy.set()
        await self.open.wait()
        if min(numbers) < 0:
            raise ArithmeticError("a negative number")
        return [2 * number for number in numbers]


def make_item(number: int, modality: str = "image") -> Prepared:
    return Prepared(modality, {}, {"n_tokens": number})


async def encode_together(batcher: Batcher, doubler: Doubler, items: list[Prepared]) -> list[object]:
    """Let all items wait while the first one is processed."""
    serving = asyncio.create_task(batcher.serve())
    first = asyncio.create_task(batcher.encode(make_item(1)))
    await doubler.busy.wait()
    rest = [asyncio.create_task(batcher.encode(one)) for one in items]
    await asyncio.sleep(0)
    doubler.open.set()
    results = await asyncio.gather(first, *rest, return_exceptions=True)
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    return results


async def test_all_that_wait_go_into_one_batch() -> None:
    doubler = Doubler()

    results = await encode_together(Batcher(doubler, items=8, tokens=100), doubler, [make_item(n) for n in (2, 3, 4)])

    assert results == [2, 4, 6, 8]
    assert doubler.batches == [[1], [2, 3, 4]]


async def test_a_batch_is_bounded_in_items_and_in_tokens() -> None:
    doubler = Doubler()

    await encode_together(Batcher(doubler, items=3, tokens=10), doubler, [make_item(n) for n in (2, 2, 2, 2, 9, 50, 1)])

    assert doubler.batches == [[1], [2, 2, 2], [2], [9], [50], [1]]


async def test_a_batch_holds_one_modality_and_looks_ahead() -> None:
    doubler = Doubler()
    items = [make_item(2), make_item(3, "video"), make_item(4), make_item(5, "video")]

    results = await encode_together(Batcher(doubler, items=8, tokens=100), doubler, items)

    assert results == [2, 4, 6, 8, 10]
    assert doubler.batches == [[1], [2, 4], [3, 5]]


async def test_a_guilty_item_fails_alone() -> None:
    doubler = Doubler()

    results = await encode_together(Batcher(doubler, items=8, tokens=100), doubler, [make_item(n) for n in (2, -3, 4)])

    assert [results[0], results[1], results[3]] == [2, 4, 8]
    assert isinstance(results[2], ArithmeticError)


async def test_a_cancelled_item_is_not_worked_on() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler, items=8, tokens=100)
    serving = asyncio.create_task(batcher.serve())
    waiting = [asyncio.create_task(batcher.encode(make_item(n))) for n in (1, 2, 3)]
    await asyncio.sleep(0)

    waiting[1].cancel()
    doubler.open.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    serving.cancel()

    assert [results[0], results[2]] == [2, 6]
    assert all(2 not in batch for batch in doubler.batches)


async def test_closing_fails_who_waits_and_who_comes_later() -> None:
    doubler = Doubler()
    batcher = Batcher(doubler, items=1, tokens=100)
    serving = asyncio.create_task(batcher.serve())
    waiting = [asyncio.create_task(batcher.encode(make_item(n))) for n in (1, 2)]
    await doubler.busy.wait()

    serving.cancel()
    results = await asyncio.gather(*waiting, return_exceptions=True)

    assert [type(result) for result in results] == [StageUnavailable, StageUnavailable]
    with pytest.raises(StageUnavailable):
        await batcher.encode(make_item(3))
