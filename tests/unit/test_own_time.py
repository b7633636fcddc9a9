"""Own time equals wall time on a quiet machine. It excludes the time of other processes."""

import asyncio
import time

from tests.own_time import OwnTime, own_time


async def test_it_goes_on_and_ends_with_its_block():
    async with own_time() as clock:
        while clock.seconds < 0.05:
            await asyncio.sleep(0.01)
    elapsed = clock.seconds
    await asyncio.sleep(0.03)

    assert clock.seconds == elapsed


async def test_what_holds_up_the_process_does_not_count():
    clock, began = OwnTime(), time.monotonic()
    counting = asyncio.create_task(clock.run())
    for _ in range(5):
        await asyncio.sleep(0.001)
        time.sleep(0.1)  # noqa: ASYNC251 as a processor that others have
    took = time.monotonic() - began
    counting.cancel()

    assert took >= 0.5
    assert clock.seconds < took / 2
