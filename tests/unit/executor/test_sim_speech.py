"""Simulated talkers and vocoders process their inputs as they arrive."""

import asyncio

import numpy as np
import pytest

from omnibus.errors import BadRequest
from tests.unit.executor.simulated import (
    make_codes,
    make_profile,
    make_row,
    make_speech_job,
    open_bench,
    select_component,
    settle_events,
)
from tests.unit.jobs import MemoryJob, MemoryPipe

# Talkers


async def test_a_talker_has_a_number_of_codes_for_each_row():
    rows = MemoryPipe()
    rows.feed(make_row(2))
    rows.feed(make_row())
    rows.close({"finish": "stop"})
    async with open_bench(make_profile()) as here:
        job = make_speech_job(rows)
        end_times = await here.run("talker", job)

    assert [len(item.data["codes"]) for item in job.outputs["codes"].items[:-1]] == [4, 4, 1]
    assert all(0 <= code < 1024 for code in job.codes)
    assert job.end("codes") == {"finish_reason": "stop"}
    assert end_times == [9.0]


async def test_a_talker_begins_behind_the_codes_that_are_known():
    runs = []
    for known_codes in ([], list(range(6))):
        rows = MemoryPipe()
        rows.feed(make_row(2))
        rows.feed(make_row())
        rows.close({"finish": "stop"})
        async with open_bench(make_profile()) as here:
            job = make_speech_job(rows)
            job._resumes = {"codes": {"codes": known_codes}}
            runs.append((await here.run("talker", job), job.codes, job.end("codes")))

    (whole, codes, end), (rest, resumed_codes, resumed_end) = runs
    assert (resumed_codes, resumed_end) == (codes, end)
    assert (whole, rest) == ([9.0], [4.0])  # the last known code may have been the end, so it is chosen again


async def test_a_talker_takes_no_step_before_its_row():
    rows = MemoryPipe()
    rows.feed(make_row(2))
    async with open_bench(make_profile(select_component("talker", chunk=1))) as here:
        job = make_speech_job(rows)
        task = await here.begin("talker", job)
        while len(job.codes) < 2:
            await asyncio.sleep(0)
        await settle_events()
        assert (len(job.codes), here.time.passed) == (2, 2.0)
        assert here["talker"].stats()["used"] == 1

        rows.feed(make_row(1))
        rows.close()
        await task

    assert len(job.codes) == 9


def feed_rows(*chunks: int) -> MemoryPipe:
    rows = MemoryPipe()
    for count in chunks:
        rows.feed(make_row(count))
    rows.close()
    return rows


async def test_codes_are_at_least_as_many_as_the_rows_they_follow_from():
    async with open_bench(make_profile(select_component("talker", steps={"per": 0.5}))) as here:
        job = make_speech_job(feed_rows(6))
        await here.run("talker", job)

    assert (len(job.codes), job.end("codes")) == (6, {"finish_reason": "stop"})


@pytest.mark.parametrize("chunks", [(6,), (1, 1, 1, 1, 1, 1), (1, 5)])
async def test_codes_do_not_depend_on_how_their_rows_arrive(chunks: tuple[int, ...]):
    async with open_bench(make_profile()) as here:
        job, whole = make_speech_job(feed_rows(*chunks)), make_speech_job(feed_rows(6))
        await here.run("talker", job, whole)

    assert len(job.codes) == 18
    assert job.codes == whole.codes


async def test_codes_may_be_cut_by_the_request_or_told_by_the_profile():
    async with open_bench(make_profile()) as here:
        cut = make_speech_job(feed_rows(6), max_codes=2)
        await here.run("talker", cut)
    async with open_bench(make_profile(select_component("talker", steps=4))) as here:
        fixed_job = make_speech_job(feed_rows(6))
        await here.run("talker", fixed_job)

    assert (len(cut.codes), cut.end("codes")) == (2, {"finish_reason": "length"})
    assert (len(fixed_job.codes), fixed_job.end("codes")) == (4, {"finish_reason": "stop"})


async def test_a_thinker_that_says_one_word_leaves_a_talker_silent():
    rows = MemoryPipe()
    rows.close({"finish": "stop"})
    async with open_bench(make_profile()) as here:
        job = make_speech_job(rows)
        await here.run("talker", job)

    assert job.codes == []
    assert job.end("codes") == {"finish_reason": "stop"}


async def test_what_breaks_the_rows_breaks_the_speech_and_frees_its_slot():
    class BrokenRowsPipe(MemoryPipe):
        async def read(self):
            yield make_row()
            raise BadRequest("no more", param="rows")

    async with open_bench(make_profile()) as here:
        with pytest.raises(BadRequest, match="no more"):
            await here.run("talker", make_speech_job(BrokenRowsPipe()))
        assert here["talker"].stats()["used"] == 0


# Vocoders


async def test_a_vocoder_gives_silence_of_the_length_of_its_codes():
    async with open_bench(make_profile()) as here:
        job = MemoryJob({"codes": make_codes(4, 2), "voice": "v"})
        end_times = await here.run("vocoder", job)

    sounds = job.outputs["audio"].items[:-1]
    assert [(item.data, item.array.shape) for item in sounds] == [({"rate": 8000}, (40,)), ({"rate": 8000}, (20,))]
    assert job.whole("audio").dtype == np.float32
    assert job.end("audio") == {"samples": 60}
    assert end_times == [0.5 + 4 * 0.25 + 0.5 + 2 * 0.25]


async def test_a_vocoder_may_give_no_samples_at_all():
    async with open_bench(make_profile(select_component("vocoder", samples=0))) as here:
        job = MemoryJob({"codes": make_codes(4), "voice": "v"})
        await here.run("vocoder", job)

    assert [item.data for item in job.outputs["audio"].items] == [{"samples": 0}]


async def test_codes_that_are_no_list_are_refused():
    stream = MemoryPipe()
    stream.close({"codes": "abc"})
    async with open_bench(make_profile()) as here:
        with pytest.raises(BadRequest, match="codes"):
            await here.run("vocoder", MemoryJob({"codes": stream}))
