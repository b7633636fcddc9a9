"""The end of background work."""

import asyncio

import pytest

from omnibus.service import until_cancelled


async def wait_forever() -> None:
    await asyncio.Event().wait()


async def test_work_that_is_cancelled_has_ended_as_it_should():
    work = asyncio.create_task(wait_forever())

    await until_cancelled(work)

    assert work.cancelled()


async def test_what_work_raised_is_raised():
    async def raise_error() -> None:
        raise ValueError("of the work")

    work = asyncio.create_task(raise_error())
    await asyncio.wait([work])

    with pytest.raises(ValueError, match="of the work"):
        await until_cancelled(work)


async def test_who_waits_for_the_end_of_work_can_be_cancelled_itself():
    going, goes = asyncio.Event(), asyncio.Event()

    async def tidies_up() -> None:
        try:
            await wait_forever()
        finally:
            going.set()
            await goes.wait()

    async def run_work() -> None:
        work = asyncio.create_task(tidies_up())
        await asyncio.sleep(0)
        await until_cancelled(work)
        await wait_forever()

    caller = asyncio.create_task(run_work())
    await going.wait()
    caller.cancel()
    goes.set()
    await asyncio.wait([caller], timeout=10)

    assert caller.cancelled()
