"""The store contract for jobs, on a real server.

One worker holds a job at a time, and a late worker cannot change it.
"""

import asyncio
import time
from contextlib import aclosing
from typing import Any

import pytest
import redis.asyncio as redis

from omnibus.errors import Overloaded, StoreUnavailable
from omnibus.settings import StoreSettings
from omnibus.store import JobRecord, JobRules, Store

KIND = "video"
MANY = JobRules(100, 100)
LONG, BRIEF = 60.0, 0.05  # seconds


def make_job(id: str = "a", **more: Any) -> JobRecord:
    now = round(time.time(), 3)
    usual = {"request": b'{"say":"gr\xc3\xbc\xc3\x9f"}', "created": now, "until": now + 60, "expires": now + 120}
    return JobRecord(id=id, **{**usual, **more})


async def put_jobs(store: Store, *ids: str) -> None:
    for place, id in enumerate(ids):
        await store.put_job(KIND, make_job(id, created=1000.0 + place), MANY)


async def take_next_job(store: Store, owner: str = "w1", seconds: float = LONG) -> JobRecord:
    """Return the next due job as soon as there is one."""
    async with asyncio.timeout(10):
        while not isinstance(outcome := await store.take_job(KIND, owner, seconds), JobRecord):
            await asyncio.sleep(outcome)
    return outcome


async def test_a_job_is_read_as_it_was_written(store: Store):
    new_job = make_job()

    assert await store.put_job(KIND, new_job, MANY)

    assert await store.job(KIND, "a") == new_job
    assert await store.job("other", "a") is None


async def test_an_id_is_given_once(store: Store):
    first = make_job()
    await store.put_job(KIND, first, MANY)

    assert not await store.put_job(KIND, make_job(request=b"{}"), MANY)

    assert await store.job(KIND, "a") == first


async def test_there_are_no_more_open_jobs_than_there_may_be(store: Store):
    rules = JobRules(open=1, kept=10)
    await store.put_job(KIND, make_job("a"), rules)
    await take_next_job(store)

    with pytest.raises(Overloaded, match="waiting or in progress"):
        await store.put_job(KIND, make_job("b"), rules)

    await store.end_job(KIND, "a", "w1", "completed", b"", LONG)
    assert await store.put_job(KIND, make_job("b"), rules)


async def test_there_are_no_more_kept_jobs_than_there_may_be(store: Store):
    rules = JobRules(open=10, kept=1)
    await store.put_job(KIND, make_job("a"), rules)
    await take_next_job(store)
    await store.end_job(KIND, "a", "w1", "failed", b"", LONG)

    with pytest.raises(Overloaded, match="the limit of stored jobs is reached"):
        await store.put_job(KIND, make_job("b"), rules)

    await store.drop_job(KIND, "a")
    assert await store.put_job(KIND, make_job("b"), rules)


async def test_the_job_that_came_first_is_taken_first(store: Store):
    await put_jobs(store, "a", "b")

    jobs = [await take_next_job(store, "w1"), await take_next_job(store, "w2")]

    assert [(each.id, each.status, each.attempt) for each in jobs] == [
        ("a", "in_progress", 1),
        ("b", "in_progress", 1),
    ]
    assert await store.job(KIND, "a") == jobs[0]


async def test_who_finds_nothing_hears_when_to_come_back(store: Store):
    assert await store.take_job(KIND, "w1", LONG) == 3600

    await put_jobs(store, "a")
    await take_next_job(store)

    wait = await store.take_job(KIND, "w2", LONG)
    assert LONG - 5 < wait <= LONG


async def test_each_of_many_jobs_is_taken_once(store: Store, valkey_url: str):
    await put_jobs(store, *(f"job-{number:02}" for number in range(30)))
    other = Store(StoreSettings(url=valkey_url, prefix="test"))

    jobs = await asyncio.gather(*(take_next_job((store, other)[number % 2], f"w{number}") for number in range(30)))

    assert len({each.id for each in jobs}) == 30
    await other.close()


async def test_a_silent_worker_loses_its_job(store: Store):
    await put_jobs(store, "a")
    await take_next_job(store, "w1", BRIEF)

    again = await take_next_job(store, "w2")

    assert (again.id, again.attempt) == ("a", 2)
    assert not await store.hold_job(KIND, "a", "w1", LONG, 50)
    assert not await store.free_job(KIND, "a", "w1", counts=True)
    assert not await store.end_job(KIND, "a", "w1", "failed", b"", LONG)
    assert await store.job(KIND, "a") == again
    assert await store.end_job(KIND, "a", "w2", "completed", b"", LONG)


async def test_a_silent_worker_counts_against_its_job_until_it_says_otherwise(store: Store):
    await put_jobs(store, "a")
    for worker in ("w1", "w2"):
        await take_next_job(store, worker, BRIEF)

    assert (await take_next_job(store, "w3")).failed_attempts == 2
    await store.restore_job(KIND, await store.job(KIND, "a"), LONG, "w3")  # a remembered job has them, too
    assert not await store.free_job(KIND, "a", "w1")

    left = await store.job(KIND, "a")
    assert (left.status, left.attempt, left.failed_attempts) == ("in_progress", 3, 1)
    assert not await store.free_job(KIND, "unknown", "w1")
    assert await store.job(KIND, "unknown") is None


async def test_a_worker_that_speaks_keeps_its_job(store: Store):
    await put_jobs(store, "a")
    await take_next_job(store, "w1", 5.0)

    assert await store.hold_job(KIND, "a", "w1", LONG, 40)

    assert await store.take_job(KIND, "w2", LONG) > 30
    assert (await store.job(KIND, "a")).progress == 40


async def test_what_was_under_way_is_told_to_who_goes_on(store: Store):
    await put_jobs(store, "a")
    await take_next_job(store, "w1", LONG)
    await store.hold_job(KIND, "a", "w1", BRIEF, 40, b'["work"]')

    assert (await take_next_job(store, "w2")).trace == b'["work"]'

    await store.free_job(KIND, "a", "w2")
    assert (await take_next_job(store, "w3")).trace == b""
    await store.hold_job(KIND, "a", "w3", LONG, 40, b'["more"]')
    await store.end_job(KIND, "a", "w3", "completed", b"", LONG)
    assert (await store.job(KIND, "a")).trace == b""


@pytest.mark.parametrize("counts", [False, True])
async def test_a_job_that_is_given_back_is_due_again(store: Store, counts: bool):
    await put_jobs(store, "a")
    await take_next_job(store)
    await store.hold_job(KIND, "a", "w1", LONG, 40)

    assert await store.free_job(KIND, "a", "w1", BRIEF, counts)

    freed_job = await store.job(KIND, "a")
    assert (freed_job.status, freed_job.progress) == ("queued", 0)
    again = await take_next_job(store, "w2")
    assert (again.attempt, again.failed_attempts) == (2, int(counts))


async def test_an_end_is_the_only_one(store: Store):
    await put_jobs(store, "a")
    await take_next_job(store)

    assert await store.end_job(KIND, "a", "w1", "failed", b'{"why":"n\xc3\xb6"}', LONG)

    ended_job = await store.job(KIND, "a")
    assert (ended_job.status, ended_job.outcome, ended_job.is_over) == ("failed", b'{"why":"n\xc3\xb6"}', True)
    assert ended_job.expires == pytest.approx(ended_job.ended + LONG)
    assert not await store.end_job(KIND, "a", "w1", "completed", b"", LONG)
    assert await store.take_job(KIND, "w2", LONG) == 3600


async def test_a_completed_job_is_done_to_a_hundred_percent(store: Store):
    await put_jobs(store, "a")
    await take_next_job(store)

    await store.end_job(KIND, "a", "w1", "completed", b"", LONG)

    assert (await store.job(KIND, "a")).progress == 100


async def test_a_removed_job_is_nobodys(store: Store):
    await put_jobs(store, "a")
    await take_next_job(store)

    assert await store.drop_job(KIND, "a")

    assert await store.job(KIND, "a") is None
    assert not await store.hold_job(KIND, "a", "w1", LONG, 1)
    assert not await store.end_job(KIND, "a", "w1", "completed", b"", LONG)
    assert not await store.drop_job(KIND, "a")
    assert await store.job(KIND, "a") is None


async def test_jobs_are_listed_page_by_page(store: Store):
    await put_jobs(store, "a", "b", "c")

    newest = await store.jobs(KIND, 2)
    rest = await store.jobs(KIND, 2, after="b")
    oldest = await store.jobs(KIND, 2, newest=False)

    assert [each.id for each in newest.jobs] == ["c", "b"]
    assert newest.more
    assert ([each.id for each in rest.jobs], rest.more) == (["a"], False)
    assert [each.id for each in oldest.jobs] == ["a", "b"]
    assert await store.jobs(KIND, 2, after="z") is None
    assert await store.jobs("other") == ([], False)


async def test_jobs_are_forgotten_in_time(store: Store, raw: redis.Redis):
    await put_jobs(store, "a")
    await take_next_job(store)
    await store.end_job(KIND, "a", "w1", "completed", b"", BRIEF)

    async with asyncio.timeout(10):
        while await store.job(KIND, "a") is not None:
            await asyncio.sleep(0.01)
    await put_jobs(store, "b")

    assert await raw.zrange("test:jobs:video:made", 0, -1) == [b"b"]
    assert await raw.zrange("test:jobs:video:ends", 0, -1) == [b"b"]
    assert 100_000 < await raw.pttl("test:job:video:b") <= 120_000


async def test_one_that_the_server_has_dropped_stops_nobody(store: Store, raw: redis.Redis):
    await put_jobs(store, "a", "b")
    await raw.delete("test:job:video:a")

    assert (await take_next_job(store)).id == "b"
    assert await store.job(KIND, "a") is None


async def test_who_still_holds_what_is_known(store: Store):
    await put_jobs(store, "a", "b", "c")
    for _ in range(3):
        await take_next_job(store)
    await store.drop_job(KIND, "b")
    await store.free_job(KIND, "c", "w1")

    assert await store.held_jobs(KIND, {"a": "w1", "b": "w1", "c": "w1"}) == {"a"}
    assert await store.held_jobs(KIND, {"a": "w2"}) == set()
    assert await store.held_jobs(KIND, {}) == set()


async def test_a_tenant_has_its_share_and_no_more(store: Store):
    rules = JobRules(open=4, kept=8, tenant_open=2, tenant_kept=3)
    for id in ("a", "b"):
        await store.put_job(KIND, make_job(id, tenant="bob"), rules)

    with pytest.raises(Overloaded, match="one tenant may have"):
        await store.put_job(KIND, make_job("c", tenant="bob"), rules)

    assert await store.put_job(KIND, make_job("d", tenant="alice"), rules)
    for _ in range(3):  # tenants take turns
        taken_job = await take_next_job(store)
        await store.end_job(KIND, taken_job.id, "w1", "completed", b"", LONG)
    assert await store.put_job(KIND, make_job("c", tenant="bob"), rules)
    with pytest.raises(Overloaded, match="your limit of stored jobs is reached"):
        await store.put_job(KIND, make_job("e", tenant="bob"), rules)


async def test_news_are_heard(store: Store):
    async with asyncio.timeout(10), aclosing(store.job_changes(KIND)) as news:
        await anext(news)

        await put_jobs(store, "a")
        await anext(news)
        await store.drop_job(KIND, "a")
        await anext(news)


async def test_without_a_server_it_is_said_so():
    store = Store(StoreSettings(url="redis://127.0.0.1:1", timeout=0.2))

    with pytest.raises(StoreUnavailable):
        await store.put_job(KIND, make_job(), MANY)
    with pytest.raises(StoreUnavailable):
        await store.take_job(KIND, "w1", LONG)
    await store.close()
