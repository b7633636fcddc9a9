"""The store contract for lost jobs: gateways review and rewrite the jobs that they remember."""

import itertools
import time

import msgspec
import pytest
import redis.asyncio as redis

from omnibus.store import JobState, Store
from tests.contract.test_store_jobs import BRIEF, KIND, LONG, make_job, put_jobs, take_next_job


async def test_a_review_tells_what_is_there_what_was_removed_and_what_is_lost(store: Store, raw: redis.Redis):
    await put_jobs(store, "a", "b", "c")
    await take_next_job(store)
    await store.drop_job(KIND, "b")
    await raw.delete("test:job:video:c")

    review = await store.review_jobs(KIND, 10, ["a", "b", "c", "z"])

    assert review.states == {"a": JobState("in_progress", 1, 0.0)}
    assert (review.removed, review.lost) == (["b"], ["c", "z"])


async def test_a_review_has_no_more_than_the_newest(store: Store):
    await put_jobs(store, "a", "b", "c")

    assert list((await store.review_jobs(KIND, 2, [])).states) == ["c", "b"]


async def test_a_store_that_lost_everything_has_another_life(store: Store, raw: redis.Redis):
    life = (await store.review_jobs(KIND, 10, [])).life

    assert (await store.review_jobs(KIND, 10, [])).life == life
    await raw.flushall()

    assert (await store.review_jobs(KIND, 10, [])).life != life


async def test_what_was_lost_is_written_again(store: Store):
    ended_job = make_job(
        "a", status="failed", ended=time.time() // 1, outcome=b"{}", attempt=2, progress=30, tenant="t"
    )
    held_job = msgspec.structs.replace(make_job("b"), status="in_progress", attempt=2, progress=50)

    assert await store.restore_job(KIND, ended_job, BRIEF)
    assert await store.restore_job(KIND, held_job, LONG)

    assert await store.job(KIND, "a") == ended_job
    assert await store.job(KIND, "b") == held_job
    assert await store.take_job(KIND, "w1", LONG) > 0, "its holder has time to say that it lives"
    assert await store.restore_job(KIND, msgspec.structs.replace(held_job, id="d"), BRIEF)
    assert (await take_next_job(store)).id == "d"
    assert await store.take_job(KIND, "w2", LONG) > 0
    assert not await store.restore_job(KIND, make_job("c", expires=time.time() - 1), BRIEF)


STATES = [
    {"status": "queued", "attempt": 0},
    {"status": "in_progress", "attempt": 1},
    {"status": "in_progress", "attempt": 2},
    {"status": "completed", "attempt": 2, "ended": 7.0, "progress": 100},
]


@pytest.mark.parametrize("order", list(itertools.permutations(range(len(STATES)))))
async def test_of_several_states_the_latest_wins_in_whatever_order_they_are_written(
    store: Store, order: tuple[int, ...]
):
    states = [make_job(**each) for each in STATES]

    for place in order:
        await store.restore_job(KIND, states[place], LONG)

    assert (await store.job(KIND, "a")).state == JobState("completed", 2, 7.0)
    assert await store.take_job(KIND, "w1", LONG) == 3600


async def test_an_end_takes_the_job_from_who_began_it_again(store: Store):
    await store.restore_job(KIND, make_job(), BRIEF)
    await take_next_job(store)

    assert await store.restore_job(KIND, make_job(status="completed", ended=7.0), LONG)

    assert not await store.hold_job(KIND, "a", "w1", LONG, 50)
    assert not await store.end_job(KIND, "a", "w1", "failed", b"", LONG)


async def test_one_of_those_who_held_a_lost_job_holds_it_again(store: Store):
    held_job = make_job(status="in_progress", attempt=1)

    assert await store.restore_job(KIND, held_job, LONG)
    assert not await store.restore_job(KIND, held_job, LONG)  # restoring it does not postpone its due time
    assert await store.restore_job(KIND, held_job, LONG, "w1")
    assert not await store.restore_job(KIND, held_job, LONG, "w2")
    assert await store.restore_job(KIND, held_job, LONG, "w1")  # said twice, by two tasks of one holder

    assert await store.held_jobs(KIND, {"a": "w1"}) == {"a"}
    assert await store.hold_job(KIND, "a", "w1", LONG, 50)


async def test_a_removed_job_is_not_written_again(store: Store):
    await put_jobs(store, "a")
    known_job = await store.job(KIND, "a")
    await store.drop_job(KIND, "a")

    assert not await store.restore_job(KIND, known_job, LONG)
    assert not await store.restore_job(KIND, known_job, LONG, "w1")

    assert await store.job(KIND, "a") is None
