"""An executor's reported work: seconds its engines computed, and jobs they finished."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from random import Random
from typing import Any, ClassVar

import pytest

from omnibus.bus.messages import BatchCounts
from omnibus.errors import BadRequest
from omnibus.executor.job_clock import MAX_BALANCE_PART, ComputeBill, JobClock, OccupancyTimer, set_current_clock
from omnibus.executor.runner import Item, Job
from omnibus.metrics import render_exposition
from omnibus.task.execute import execute_task
from tests.unit.executor.arithmetic import Place, make_call, make_invocation, put_number, wait_forever
from tests.unit.executor.simulated import make_chat_job, make_media_job, make_profile, open_bench
from tests.unit.jobs import MemoryJob, MemoryPipe
from tests.unit.sidecar.node import wait_until
from tests.unit.task.tasks import ONE, Fold, FoldInput, FoldOutput


async def refuse_job(job: Job) -> None:
    raise BadRequest("no")


async def test_jobs_are_counted_by_component_when_they_finish(here: Place):
    await here.executor("a", {"number": put_number, "other": refuse_job, "long": wait_forever})
    calls = [make_call("number", x=1), make_call("number", x=2), make_call("other"), make_call("long")]

    here.office.send(make_invocation(calls, ["a"] * 4, []))
    await wait_until(lambda: here.status("a").done == (2, 0, 0))

    assert here.status("a").components == ("number", "other", "long")
    assert here.status("a").busy == (0.0, 0.0, 0.0)


async def test_a_heartbeat_tells_what_the_engines_computed(here: Place):
    new_executor = await here.executor("a", {"number": put_number, "other": put_number})
    new_executor._runners["other"].busy = 1.25  # type: ignore[attr-defined]

    await wait_until(lambda: any(getattr(event, "busy", ()) == (0.0, 1.25) for event in here.office.events))

    assert b'omnibus_executor_busy_seconds{component="other"} 1.25' in render_exposition()


async def test_a_heartbeat_tells_the_batches_of_engines_that_count_them(here: Place):
    new_executor = await here.executor("a", {"number": put_number, "other": put_number})
    counts = BatchCounts(passes=1, tokens=20, steps=5, rows=9)
    new_executor._runners["other"].batch_counts = counts  # type: ignore[attr-defined]

    await wait_until(
        lambda: any(getattr(event, "batches", ()) == (BatchCounts(), counts) for event in here.office.events)
    )


async def test_a_simulated_language_model_counts_its_batches():
    async with open_bench(make_profile()) as here:
        await here.run("thinker", *(make_chat_job() for _ in range(3)))

        counts, stats = here["thinker"].batch_counts, here["thinker"].stats()
        assert counts.passes == sum(stats["batches"].values()) > 0
        assert counts.steps == sum(stats["steps"].values()) > 0
        assert counts.rows == sum(int(size) * count for size, count in stats["steps"].items())
        assert counts.tokens + counts.rows == stats["tokens"]


async def test_the_micro_service_tells_it_too(here: Place):
    new_executor = await here.executor("a", {"number": put_number, "other": put_number})
    new_executor._runners["number"].busy = 1.25  # type: ignore[attr-defined]
    here.office.send(make_invocation([make_call("number", x=1)], ["a"], []))
    await wait_until(lambda: here.status("a").done == (1, 0))

    assert new_executor._vitals.component_stats("number") == {"sums": 1, "busy": 1.25, "done": 1}
    assert new_executor._vitals.component_stats("other") == {"sums": 1, "busy": None, "done": 0}


async def test_a_simulated_engine_is_busy_for_its_own_part_of_the_device():
    async with open_bench(make_profile()) as here:
        await here.run("vision", *(make_media_job() for _ in range(6)))

        assert here["vision"].busy == pytest.approx(8.0)
        assert here["vocoder"].busy == 0.0


async def test_the_seconds_of_a_batch_are_divided_among_its_jobs():
    """All jobs together are charged the engine's busy time."""
    clocks: list[JobClock] = []

    async def run_job(component: str, job: MemoryJob) -> None:
        clocks.append(JobClock())
        set_current_clock(clocks[-1])
        await here[component].run(job)

    async with open_bench(make_profile()) as here:
        for component in ("vision", "thinker"):
            await here[component].load()
        jobs = [("vision", make_media_job()) for _ in range(6)] + [("thinker", make_chat_job()) for _ in range(5)]
        await asyncio.gather(*(run_job(*each) for each in jobs))
        busy = here["vision"].busy + here["thinker"].busy

    assert sum(clock.seconds for clock in clocks) == pytest.approx(busy, rel=0.01)
    assert clocks[0].seconds == pytest.approx(5.0 / 4), "four pictures in a batch of five seconds"


def test_a_step_that_was_for_nobody_is_charged_with_the_next_one():
    bill, over, going, other = ComputeBill(), JobClock(), JobClock(), JobClock()
    over.closed = True

    bill.add_seconds(2.0, [(over, 1.0)])
    bill.add_seconds(1.0, [(over, 1.0), (going, 1.0), (other, 2.0)])

    assert (over.seconds, going.seconds, other.seconds) == (0.0, 1.0, 2.0)


def test_steps_cost_what_they_do_in_the_mean_however_many_share_them():
    """Half of the steps run alone and half are shared by four, 16 ms each; all cost the same."""
    bill, alone, shared_clock, dice = ComputeBill(), JobClock(), JobClock(), Random(1)
    other_clocks = [JobClock() for _ in range(3)]
    for _ in range(20_000):  # a mean needs samples first
        bill.add_seconds(
            0.016, [(each, 1.0) for each in (other_clocks if dice.random() < 0.5 else other_clocks[:1])], "step"
        )
    charged_seconds = sum(each.seconds for each in other_clocks)

    for step in range(200):
        by = [alone] if step % 2 else [shared_clock, *other_clocks]
        bill.add_seconds(0.016, [(each, 1.0) for each in by], "step")

    assert charged_seconds == pytest.approx(20_000 * 0.016, rel=MAX_BALANCE_PART)
    assert alone.seconds == pytest.approx(shared_clock.seconds, rel=0.1)
    assert alone.seconds + shared_clock.seconds + sum(
        each.seconds for each in other_clocks
    ) - charged_seconds == pytest.approx(200 * 0.016, abs=MAX_BALANCE_PART * 20_200 * 0.016 * 2)


def test_what_is_no_step_costs_what_it_took():
    bill, prompt, answer = ComputeBill(), JobClock(), JobClock()
    for step in range(1000):
        bill.add_seconds(0.016, [(answer, 1.0)] * (1 + step % 2), "step")

    bill.add_seconds(2.0, [(prompt, 1.0)])

    assert prompt.seconds == 2.0


# Engines with their own batching, and tasks with their own engine


def test_jobs_side_by_side_share_their_seconds(clock: list[float], occupancy_timer: OccupancyTimer):
    first, second = JobClock(), JobClock()
    set_current_clock(first)
    with occupancy_timer():
        clock[0] += 1
        set_current_clock(second)
        with occupancy_timer():
            clock[0] += 2
        set_current_clock(first)
        clock[0] += 4

    assert (first.seconds, second.seconds) == (6.0, 1.0)


@pytest.fixture
def clock() -> list[float]:
    """The current time, which a test sets."""
    return [100.0]


@pytest.fixture
def occupancy_timer(clock: list[float]) -> OccupancyTimer:
    return OccupancyTimer(lambda: clock[0])


def test_jobs_side_by_side_count_once(clock: list[float], occupancy_timer: OccupancyTimer):
    with occupancy_timer():
        clock[0] += 1
        with occupancy_timer():
            clock[0] += 2
        clock[0] += 4
        assert occupancy_timer.seconds == 7.0
    clock[0] += 8
    with occupancy_timer():
        clock[0] += 16

    assert occupancy_timer.seconds == 23.0


def test_a_job_that_fails_was_computed_as_well(clock: list[float], occupancy_timer: OccupancyTimer):
    with pytest.raises(ValueError, match="no"), occupancy_timer():
        clock[0] += 3
        raise ValueError("no")
    clock[0] += 5

    assert occupancy_timer.seconds == 3.0


async def test_waiting_for_inputs_is_no_work(clock: list[float], occupancy_timer: OccupancyTimer):
    class LateInputJob(MemoryJob):
        async def value(self, name: str) -> Any:
            clock[0] += 10
            return await super().value(name)

    await execute_task(ONE, LateInputJob({"x": 6}, ("n",)), occupancy_timer())

    assert clock[0] > 100.0
    assert occupancy_timer.seconds == 0.0


class SlowEdges(MemoryJob):
    """A job with slow input and a slow reader: 10 s for each part, 100 s for each output."""

    def __init__(self, clock: list[float], *given: Any) -> None:
        super().__init__(*given)
        self._clock = clock

    async def stream(self, name: str) -> AsyncIterator[Item]:
        if name == "other":
            return
        async for item in super().stream(name):
            self._clock[0] += 10
            yield item
        self._clock[0] += 10

    async def send(self, output: str, data: dict[str, Any], array: Any = None) -> None:
        self._clock[0] += 100
        await super().send(output, data, array)

    async def put(self, output: str, data: dict[str, Any], array: Any = None) -> None:
        self._clock[0] += 100
        await super().put(output, data, array)


class Generates(Fold):
    """One second of work for each part, as an async generator."""

    clock: ClassVar[list[float]]

    async def run(self, inputs: FoldInput) -> AsyncIterator[dict[str, Any]]:
        async for part in inputs.parts:
            self.clock[0] += 1
            yield {"sums": part}
        yield {"n": 0}


class Returns(Fold):
    """The same work as a coroutine, which returns everything at its end."""

    clock: ClassVar[list[float]]

    async def run(self, inputs: FoldInput) -> FoldOutput:  # type: ignore[override]
        sums = []
        async for part in inputs.parts:
            self.clock[0] += 1
            sums.append(part)
        return FoldOutput.of({"sums": sums, "n": 0})


class RunsInThread(Fold):
    """The same work in a thread, which receives all parts at once."""

    clock: ClassVar[list[float]]

    def run(self, inputs: FoldInput) -> Iterator[dict[str, Any]]:  # type: ignore[override]
        for part in inputs.parts:
            self.clock[0] += 1
            yield {"sums": part}
        yield {"n": 0}


@pytest.mark.parametrize("kind", [Generates, Returns, RunsInThread])
async def test_a_task_is_charged_for_its_own_time_whatever_it_waits_for(
    clock: list[float], occupancy_timer: OccupancyTimer, kind: type[Fold]
):
    kind.clock, job_clock, parts = clock, JobClock(), MemoryPipe()
    for part in range(3):
        parts.feed(Item({"value": part}), last=part == 2)
    set_current_clock(job_clock)

    await execute_task(kind(), SlowEdges(clock, {"parts": parts}, ("sums", "n")), occupancy_timer())

    assert clock[0] == 100 + 3 * 1 + 4 * 10 + 4 * 100
    assert (job_clock.seconds, occupancy_timer.seconds) == (3.0, 3.0)
