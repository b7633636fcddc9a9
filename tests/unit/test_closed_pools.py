"""Work that waits for a closing engine fails by name, unlike cancelled work."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from omnibus.errors import StageUnavailable
from omnibus_engines.component import run_in_pool


async def test_what_waits_when_a_pool_is_closed_is_unavailable():
    pool, go_on = ThreadPoolExecutor(1), threading.Event()
    first = asyncio.create_task(run_in_pool(pool, go_on.wait, 10))
    second = asyncio.create_task(run_in_pool(pool, int))
    await asyncio.sleep(0)

    closing = asyncio.create_task(asyncio.to_thread(pool.shutdown, cancel_futures=True))
    with pytest.raises(StageUnavailable, match="closed"):
        await second
    go_on.set()
    await closing

    assert await first
    with pytest.raises(StageUnavailable, match="closed"):
        await run_in_pool(pool, int)


async def test_who_leaves_is_cancelled():
    pool, go_on = ThreadPoolExecutor(1), threading.Event()
    first = asyncio.create_task(run_in_pool(pool, go_on.wait, 10))
    second = asyncio.create_task(run_in_pool(pool, int))
    await asyncio.sleep(0)

    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second

    go_on.set()
    assert await first
    pool.shutdown()
