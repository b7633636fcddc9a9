"""Concurrent calls: all results in order, or only the first error, which retains nothing unneeded."""

import asyncio
import contextlib
import gc
import weakref
from typing import Any

import pytest

from omnibus.concurrency import finish_within, gather_calls, keep_cancellation
from omnibus.errors import BadMedia


class LargeBody:
    """A large object that an error's frames reference."""


async def return_after(turns: int, value: Any) -> Any:
    for _ in range(turns):
        await asyncio.sleep(0)
    if isinstance(value, Exception):
        raise value
    return value


async def for_ever(endings: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        endings.append(name)


async def test_results_come_in_the_order_of_the_calls():
    assert await gather_calls(return_after(3, "a"), return_after(1, "b"), return_after(2, "c")) == ["a", "b", "c"]
    assert await gather_calls() == []


async def test_the_first_error_is_raised_as_it_is_once_the_others_have_ended():
    endings: list[str] = []
    first = BadMedia("first")

    with pytest.raises(BadMedia) as caught:
        await gather_calls(
            for_ever(endings, "a"), return_after(9, BadMedia("later")), return_after(1, first), for_ever(endings, "b")
        )

    assert caught.value is first
    assert sorted(endings) == ["a", "b"]


async def test_a_caller_that_is_cancelled_takes_the_calls_along():
    endings: list[str] = []
    caller = asyncio.ensure_future(gather_calls(for_ever(endings, "a"), for_ever(endings, "b")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller

    assert sorted(endings) == ["a", "b"]


async def test_what_an_error_held_is_gone_with_it_without_the_garbage_collector():
    async def raise_after(body: LargeBody) -> None:
        await asyncio.sleep(0)
        raise BadMedia("no")

    body = LargeBody()
    reference = weakref.ref(body)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(BadMedia):
            await gather_calls(raise_after(body), return_after(5, None))
        del body
        assert reference() is None
    finally:
        gc.enable()


async def drop_cancellation(answer: asyncio.Future[str]) -> str:
    """Wait like a library that drops a cancellation when its answer arrives."""
    try:
        return await answer
    except asyncio.CancelledError:
        return answer.result() if answer.done() and not answer.cancelled() else "late"


async def test_a_cancellation_that_a_call_drops_is_raised_afterwards():
    task = asyncio.create_task(keep_cancellation(drop_cancellation(asyncio.get_running_loop().create_future())))
    await asyncio.sleep(0)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_that_a_call_drops_for_an_error_is_raised_afterwards():
    async def refuse_call() -> None:
        await drop_cancellation(asyncio.get_running_loop().create_future())
        raise BadMedia("refused")

    async with asyncio.timeout(10):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await keep_cancellation(refuse_call())


async def test_a_call_that_is_not_cancelled_returns_its_result():
    assert await keep_cancellation(return_after(2, "answer")) == "answer"


async def test_a_timeout_ends_what_follows_a_call_that_dropped_it():
    async def never_ending() -> None:
        await keep_cancellation(drop_cancellation(asyncio.get_running_loop().create_future()))
        await asyncio.Event().wait()

    async with asyncio.timeout(10):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await never_ending()


@pytest.mark.parametrize("drop_count", [0, 1, 5])
async def test_a_call_that_drops_cancellations_and_goes_on_ends_in_time_all_the_same(drop_count: int):
    cancellations = 0

    async def try_again() -> None:
        nonlocal cancellations
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancellations += 1
                if cancellations > drop_count:
                    raise

    async with asyncio.timeout(20):
        with pytest.raises(TimeoutError):
            await finish_within(0.01, try_again())

    assert cancellations == drop_count + 1


async def test_a_call_that_finishes_in_time_has_its_result_or_its_error():
    assert await finish_within(20, return_after(2, "answer")) == "answer"
    with pytest.raises(BadMedia):
        await finish_within(20, return_after(2, BadMedia("broken")))


async def test_who_waits_for_a_call_and_is_cancelled_takes_it_along():
    endings: list[str] = []
    caller = asyncio.ensure_future(finish_within(20, for_ever(endings, "call")))
    await asyncio.sleep(0.01)

    caller.cancel()

    with pytest.raises(asyncio.CancelledError):
        await caller
    assert endings == ["call"]
