"""Leases are kept while the store confirms them. They are released before another gateway can take the job."""

import asyncio
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis.asyncio as redis

from omnibus.errors import Retryable, StoreUnavailable
from omnibus.settings import StoreSettings
from omnibus.store import JobRecord, JobRules, Store
from omnibus.store.lease import JobLease
from omnibus.up import infra
from tests.unit.sidecar import node as nodes

KIND = "video"


@pytest.fixture
async def store(valkey_url: str, empty_store: None) -> AsyncIterator[Store]:
    lease_store = Store(StoreSettings(url=valkey_url, prefix="lease", timeout=2.0))
    yield lease_store
    await lease_store.close()


async def start_lease(store: Store, seconds: float) -> JobLease:
    now = time.time()
    await store.put_job(
        KIND, JobRecord(id="a", request=b"", created=now, until=now + 60, expires=now + 60), JobRules(9, 9)
    )
    since = asyncio.get_running_loop().time()
    job = await store.take_job(KIND, "me", seconds)
    assert isinstance(job, JobRecord)
    return JobLease(store, KIND, job, "me", seconds, since)


async def test_a_job_is_held_beyond_its_first_seconds(store: Store):
    lease = await start_lease(store, 1.5)  # a test worker may stall for up to half of that
    keeping = asyncio.create_task(lease.hold_until_lost())
    later = time.monotonic() + 2.0

    await nodes.wait_until(lambda: time.monotonic() > later)

    assert not keeping.done()
    assert isinstance(await store.take_job(KIND, "another", 9.0), float)
    keeping.cancel()


async def test_progress_is_written_and_never_goes_back(store: Store):
    lease = await start_lease(store, 5.0)
    keeping = asyncio.create_task(lease.hold_until_lost())

    lease.report_progress(40)
    lease.report_progress(20)

    async def is_written() -> bool:
        return (await store.job(KIND, "a")).progress == 40

    await nodes.wait_until(is_written)
    keeping.cancel()


async def test_what_begins_is_written_at_once(store: Store):
    lease = await start_lease(store, 60.0)
    keeping = asyncio.create_task(lease.hold_until_lost())
    assert not lease.has_trace

    lease.set_trace(lambda: b'["work"]')

    async def is_written() -> bool:
        return (await store.job(KIND, "a")).trace == b'["work"]'

    await nodes.wait_until(is_written)
    assert lease.has_trace
    keeping.cancel()


async def test_a_lease_that_is_lost_ends_at_once(store: Store):
    lease = await start_lease(store, 60.0)
    keeping = asyncio.create_task(lease.hold_until_lost())

    lease.mark_lost()

    async with asyncio.timeout(5):
        await keeping


async def test_a_job_that_was_removed_is_lost(store: Store):
    lease = await start_lease(store, 0.6)

    await store.drop_job(KIND, "a")

    async with asyncio.timeout(5):
        await lease.hold_until_lost()


async def test_a_job_that_the_store_has_lost_is_still_held(store: Store, redis_client: redis.Redis):
    lease = await start_lease(store, 60.0)
    keeping = asyncio.create_task(lease.hold_until_lost())
    await redis_client.flushall()

    lease.renew()

    async def is_held() -> bool:
        return await store.held_jobs(KIND, {"a": "me"}) == {"a"}

    await nodes.wait_until(is_held)
    assert isinstance(await store.take_job(KIND, "another", 9.0), float)
    assert not keeping.done()
    keeping.cancel()


@pytest.mark.parametrize("why", ["removed", "taken"])
async def test_a_job_that_is_anothers_after_the_store_lost_it_is_given_up(
    store: Store, redis_client: redis.Redis, why: str
):
    lease = await start_lease(store, 60.0)
    job = await store.job(KIND, "a")
    await redis_client.flushall()
    if why == "removed":
        await store.drop_job(KIND, "a")
    else:
        await store.restore_job(KIND, msgspec.structs.replace(job, status="queued"), 0.0)
        assert isinstance(await store.take_job(KIND, "another", 60.0), JobRecord)

    lease.renew()

    async with asyncio.timeout(5):
        await lease.hold_until_lost()
    with pytest.raises(Retryable, match="no longer held here"):
        await lease.confirm()


async def test_who_holds_a_job_may_complete_it_and_who_lost_it_may_not(store: Store):
    lease = await start_lease(store, 1.0)
    await lease.confirm()

    await asyncio.sleep(1.1)
    assert isinstance(await store.take_job(KIND, "another", 60.0), JobRecord)

    with pytest.raises(Retryable, match="no longer held here"):
        await lease.confirm()


async def test_a_lease_that_a_silent_store_could_not_confirm_is_held_again_before_it_counts(
    store: Store, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    """A connection that failed with the store proves nothing. Another gateway may hold the job in the new store."""
    lease = await start_lease(store, 60.0)
    job = await store.job(KIND, "a")
    await redis_client.flushall()
    assert job is not None
    await store.restore_job(KIND, job, 60.0)  # as another gateway's mirror does, without a holder
    failures = iter([StoreUnavailable("the connection was closed")] * 2)
    hold = store.hold_job

    async def broken_at_first(*arguments: Any) -> bool:
        if failure := next(failures, None):
            raise failure
        return await hold(*arguments)

    monkeypatch.setattr(store, "hold_job", broken_at_first)

    await lease.confirm()

    assert await store.held_jobs(KIND, {"a": "me"}) == {"a"}


@pytest.fixture
def own_server(tmp_path: Path, run_server: Any) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """A store that a test may stop."""
    server = infra.prepare_valkey(tmp_path)
    with run_server(server) as process:
        yield server.url, process


async def test_a_lease_is_given_up_when_its_store_is_silent(own_server: tuple[str, "subprocess.Popen[bytes]"]):
    url, process = own_server
    store = Store(StoreSettings(url=url, prefix="lease", timeout=0.2))
    lease = await start_lease(store, 1.0)

    process.send_signal(signal.SIGSTOP)

    async with asyncio.timeout(5):
        await lease.hold_until_lost()
    await store.close()
