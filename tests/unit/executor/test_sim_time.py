"""Timing of simulated executors: the profile's times, repeatable randomness, and immediate release on cancellation."""

import asyncio
from typing import Any

import pytest

from omnibus.errors import StageUnavailable
from omnibus.executor.sim import Profile
from tests.unit.executor.simulated import (
    bench,
    chat,
    media,
    one,
    profile,
    row,
    settled,
    spoken,
)
from tests.unit.jobs import Pipe

# Time


async def test_all_times_are_scaled():
    async with bench(profile(one("vision"), time_scale=0.1)) as here:
        done = await here.run("vision", media())

    assert done == [0.2]


async def test_an_executor_is_ready_after_its_startup_however_many_components_it_has():
    given = profile(options={"O": {"startup": 40}}, time_scale=0.5)
    async with bench(given) as here:
        await here["vision"].load()
        assert here.time.passed == 20.0
        await here["thinker"].load()
        assert here.time.passed == 20.0
        assert here["thinker"].stats()["utilisation"] == 0.0


async def test_components_of_one_executor_slow_each_other_down():
    alone = {}
    for component, job in (("vision", media()), ("thinker", chat())):
        async with bench(profile()) as here:
            [alone[component]] = await here.run(component, job)

    async with bench(profile()) as here:
        encoding = await here.begin("vision", media())
        [thought] = await here.run("thinker", chat())
        await encoding

    assert alone == {"vision": 2.0, "thinker": 5.0}
    assert thought == 7.0


async def test_alpha_slows_an_option_down():
    given = profile(options={"EL": {"alpha": 1.5}})

    async with bench(given, "EL") as here:
        assert await here.run("vision", media()) == [3.0]
    async with bench(given, "E") as here:
        assert await here.run("vision", media()) == [2.0]


async def test_slots_are_the_executors_batch_unless_the_profile_says_how_many():
    async with bench(profile(one("vision", slots=0)), batch=3) as here:
        await here.run("vision", *(media() for _ in range(4)))
        assert here["vision"].stats()["batches"] == {"1": 1, "3": 1}
        assert here["vision"].stats()["slots"] == 3


async def test_stats_show_the_queue_and_the_slots_in_use():
    async with bench(profile()) as here:
        tasks = [await here.begin("thinker", chat()) for _ in range(6)]
        stats = here["thinker"].stats()
        for task in tasks:
            task.cancel()

    assert (stats["slots"], stats["used"], stats["waiting"]) == (4, 4, 2)
    assert stats["parameters"] == 0


def long_answers(**changes: Any) -> Profile:
    return profile(one("thinker", **{"steps": 20, "chunk": 100, **changes}))


async def test_tokens_that_share_a_message_are_made_in_the_same_time_with_fewer_timers():
    spent = {}
    for chunk in (1, 5, 100):
        async with bench(long_answers(chunk=chunk)) as here:
            done = await here.run("thinker", chat())
            spent[chunk] = here.time.set
            assert done == [20.0]
            assert here["thinker"].stats()["steps"] == {"1": 19}

    assert spent[1] > spent[5] > spent[100]
    assert spent[100] < 6


async def test_who_comes_in_the_midst_of_many_steps_waits_for_the_one_that_is_under_way():
    async with bench(long_answers()) as here:
        first, second, late = chat(), chat(max_tokens=5), []
        done = asyncio.ensure_future(here.run("thinker", first))
        here.time.later(3.3, lambda: late.append(asyncio.ensure_future(here.run("thinker", second))))
        [whole] = await done
        [joined] = await late[0]

    assert joined == 4.0 + 1.0 + 4 * 1.5
    assert whole == 4.0 + 1.0 + 4 * 1.5 + 12 * 1.0


async def test_who_leaves_in_the_midst_of_many_steps_lets_the_next_one_in_after_the_one_under_way():
    async with bench(long_answers(slots=1)) as here:
        leaving = await here.begin("thinker", chat())
        here.time.later(7.5, leaving.cancel)

        [done] = await here.run("thinker", chat(max_tokens=3))

    assert done == 8.0 + 1.0 + 2 * 1.0


# Chance


async def answers(given: dict[str, Any], seeds: range, **more: Any) -> list[tuple[str, float]]:
    found = []
    for seed in seeds:
        async with bench(profile(one("thinker", steps={"mean": 20, "cv": 1}), jitter=0.2, **given)) as here:
            job = chat(seed=seed, **more)
            [done] = await here.run("thinker", job)
            found.append((job.text, done))
    return found


async def test_the_same_job_has_the_same_answer_and_takes_the_same_time():
    first = await answers({}, range(8))

    assert await answers({}, range(8)) == first
    assert len(set(first)) == 8
    assert await answers({"seed": 1}, range(8)) != first
    assert await answers({}, range(8), said="something else entirely") != first


async def test_two_jobs_differ_by_seed_and_by_content():
    async with bench(profile(one("vision", tokens={"image": {"mean": 500, "cv": 1}}))) as here:
        jobs = [media(seed=1), media(seed=1), media(seed=2), media(b"y" * 2048, seed=1)]
        await here.run("vision", *jobs)

    sizes = [len(job.array("embedding")) for job in jobs]
    assert sizes[0] == sizes[1]
    assert len(set(sizes)) == 3


# Ends


async def test_a_cancelled_job_leaves_its_slot_at_once():
    async with bench(profile(one("thinker", slots=1))) as here:
        first, second = [await here.begin("thinker", chat(max_tokens=1000, ignore_eos=True)) for _ in range(2)]
        third = await here.begin("thinker", chat())
        assert here["thinker"].stats()["waiting"] == 2

        first.cancel()
        second.cancel()
        job = await third

        assert len(job.ids) == 5
        assert here["thinker"].stats()["used"] == 0
        assert here.time.passed < 20


async def test_a_cancelled_talker_stops_following_its_rows():
    rows = Pipe()
    rows.feed(row())
    async with bench(profile()) as here:
        before = asyncio.all_tasks()
        task = await here.begin("talker", spoken(rows))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

        assert here["talker"].stats()["used"] == 0
        assert not [task for task in asyncio.all_tasks() - before if task.get_name() == "rows"]


async def test_an_engine_that_is_closed_fails_who_waits_and_who_comes():
    async with bench(profile()) as here:
        waiting = [await here.begin("thinker", chat()), await here.begin("vision", media())]
        await here.close()

        for task in waiting:
            with pytest.raises(StageUnavailable):
                await task
        with pytest.raises(StageUnavailable):
            await here.run("vision", media())


async def test_an_idle_executor_sets_no_timer():
    async with bench(profile()) as here:
        await here.run("vision", media())
        before = here.time.set
        await settled()

    assert here.time.set == before
