"""Timing of simulated executors: the profile's times, repeatable randomness, and immediate release on cancellation."""

import asyncio
from typing import Any

import pytest

from omnibus.errors import StageUnavailable
from omnibus.executor.sim import Profile
from tests.unit.executor.simulated import (
    make_chat_job,
    make_media_job,
    make_profile,
    make_row,
    make_speech_job,
    open_bench,
    select_component,
    settle_events,
)
from tests.unit.jobs import MemoryPipe

# Time


async def test_all_times_are_scaled():
    async with open_bench(make_profile(select_component("vision"), time_scale=0.1)) as here:
        end_times = await here.run("vision", make_media_job())

    assert end_times == [0.2]


async def test_an_executor_is_ready_after_its_startup_however_many_components_it_has():
    scaled_profile = make_profile(options={"O": {"startup": 40}}, time_scale=0.5)
    async with open_bench(scaled_profile) as here:
        await here["vision"].load()
        assert here.time.passed == 20.0
        await here["thinker"].load()
        assert here.time.passed == 20.0
        assert here["thinker"].stats()["utilisation"] == 0.0


async def test_components_of_one_executor_slow_each_other_down():
    alone = {}
    for component, job in (("vision", make_media_job()), ("thinker", make_chat_job())):
        async with open_bench(make_profile()) as here:
            [alone[component]] = await here.run(component, job)

    async with open_bench(make_profile()) as here:
        encoding = await here.begin("vision", make_media_job())
        [thought] = await here.run("thinker", make_chat_job())
        await encoding

    assert alone == {"vision": 2.0, "thinker": 5.0}
    assert thought == 7.0


async def test_alpha_slows_an_option_down():
    option_profile = make_profile(options={"EL": {"alpha": 1.5}})

    async with open_bench(option_profile, "EL") as here:
        assert await here.run("vision", make_media_job()) == [3.0]
    async with open_bench(option_profile, "E") as here:
        assert await here.run("vision", make_media_job()) == [2.0]


async def test_slots_are_the_executors_batch_unless_the_profile_says_how_many():
    async with open_bench(make_profile(select_component("vision", slots=0)), batch=3) as here:
        await here.run("vision", *(make_media_job() for _ in range(4)))
        assert here["vision"].stats()["batches"] == {"1": 1, "3": 1}
        assert here["vision"].stats()["slots"] == 3


async def test_stats_show_the_queue_and_the_slots_in_use():
    async with open_bench(make_profile()) as here:
        tasks = [await here.begin("thinker", make_chat_job()) for _ in range(6)]
        stats = here["thinker"].stats()
        for task in tasks:
            task.cancel()

    assert (stats["slots"], stats["used"], stats["waiting"]) == (4, 4, 2)
    assert stats["parameters"] == 0


def long_answers(**changes: Any) -> Profile:
    return make_profile(select_component("thinker", **{"steps": 20, "chunk": 100, **changes}))


async def test_tokens_that_share_a_message_are_made_in_the_same_time_with_fewer_timers():
    timer_counts = {}
    for chunk in (1, 5, 100):
        async with open_bench(long_answers(chunk=chunk)) as here:
            end_times = await here.run("thinker", make_chat_job())
            timer_counts[chunk] = here.time.set
            assert end_times == [20.0]
            assert here["thinker"].stats()["steps"] == {"1": 19}

    assert timer_counts[1] > timer_counts[5] > timer_counts[100]
    assert timer_counts[100] < 6


async def test_who_comes_in_the_midst_of_many_steps_waits_for_the_one_that_is_under_way():
    async with open_bench(long_answers()) as here:
        first, second, late = make_chat_job(), make_chat_job(max_tokens=5), []
        pending = asyncio.ensure_future(here.run("thinker", first))
        here.time.later(3.3, lambda: late.append(asyncio.ensure_future(here.run("thinker", second))))
        [whole] = await pending
        [joined_time] = await late[0]

    assert joined_time == 4.0 + 1.0 + 4 * 1.5
    assert whole == 4.0 + 1.0 + 4 * 1.5 + 12 * 1.0


async def test_who_leaves_in_the_midst_of_many_steps_lets_the_next_one_in_after_the_one_under_way():
    async with open_bench(long_answers(slots=1)) as here:
        leaving = await here.begin("thinker", make_chat_job())
        here.time.later(7.5, leaving.cancel)

        [end_time] = await here.run("thinker", make_chat_job(max_tokens=3))

    assert end_time == 8.0 + 1.0 + 2 * 1.0


# Chance


async def list_answers(options: dict[str, Any], seeds: range, **more: Any) -> list[tuple[str, float]]:
    results = []
    for seed in seeds:
        async with open_bench(
            make_profile(select_component("thinker", steps={"mean": 20, "cv": 1}), jitter=0.2, **options)
        ) as here:
            job = make_chat_job(seed=seed, **more)
            [end_time] = await here.run("thinker", job)
            results.append((job.text, end_time))
    return results


async def test_the_same_job_has_the_same_answer_and_takes_the_same_time():
    first = await list_answers({}, range(8))

    assert await list_answers({}, range(8)) == first
    assert len(set(first)) == 8
    assert await list_answers({"seed": 1}, range(8)) != first
    assert await list_answers({}, range(8), text="something else entirely") != first


async def test_two_jobs_differ_by_seed_and_by_content():
    async with open_bench(make_profile(select_component("vision", tokens={"image": {"mean": 500, "cv": 1}}))) as here:
        jobs = [
            make_media_job(seed=1),
            make_media_job(seed=1),
            make_media_job(seed=2),
            make_media_job(b"y" * 2048, seed=1),
        ]
        await here.run("vision", *jobs)

    sizes = [len(job.array("embedding")) for job in jobs]
    assert sizes[0] == sizes[1]
    assert len(set(sizes)) == 3


# Ends


async def test_a_cancelled_job_leaves_its_slot_at_once():
    async with open_bench(make_profile(select_component("thinker", slots=1))) as here:
        first, second = [await here.begin("thinker", make_chat_job(max_tokens=1000, ignore_eos=True)) for _ in range(2)]
        third = await here.begin("thinker", make_chat_job())
        assert here["thinker"].stats()["waiting"] == 2

        first.cancel()
        second.cancel()
        job = await third

        assert len(job.ids) == 5
        assert here["thinker"].stats()["used"] == 0
        assert here.time.passed < 20


async def test_a_cancelled_talker_stops_following_its_rows():
    rows = MemoryPipe()
    rows.feed(make_row())
    async with open_bench(make_profile()) as here:
        before = asyncio.all_tasks()
        task = await here.begin("talker", make_speech_job(rows))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

        assert here["talker"].stats()["used"] == 0
        assert not [task for task in asyncio.all_tasks() - before if task.get_name() == "rows"]


async def test_an_engine_that_is_closed_fails_who_waits_and_who_comes():
    async with open_bench(make_profile()) as here:
        waiting = [await here.begin("thinker", make_chat_job()), await here.begin("vision", make_media_job())]
        await here.close()

        for task in waiting:
            with pytest.raises(StageUnavailable):
                await task
        with pytest.raises(StageUnavailable):
            await here.run("vision", make_media_job())


async def test_an_idle_executor_sets_no_timer():
    async with open_bench(make_profile()) as here:
        await here.run("vision", make_media_job())
        before = here.time.set
        await settle_events()

    assert here.time.set == before
