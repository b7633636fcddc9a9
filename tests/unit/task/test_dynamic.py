"""Graphs that grow with their results: valid operations of an async ``invoke``, and the resulting segments."""

import asyncio
from typing import Any

import pytest

from omnibus.errors import BadRequest, GraphError, StageUnavailable
from omnibus.task import CompositeTask, Segment, choose, pinned, tool, use
from tests.unit.task.memory import Memory, Runs
from tests.unit.task.tasks import (
    ADD,
    ALL,
    ONE,
    ROLL,
    STRICT,
    TWO,
    AddInput,
    NumberInput,
)


@pytest.fixture
def runs() -> Runs:
    return Runs()


async def test_a_loop_goes_on_until_a_result_says_stop(runs: Runs):
    async def double_value(x: int) -> Any:
        while x < 40:
            x = await TWO.invoke(NumberInput(x=x)).n
        return x

    assert await runs(double_value, 3) == 48
    assert runs.shapes == [["number-scale_2"]] * 4
    assert [segment.nodes[0].inputs["x"] for segment in runs.segments] == [3, 6, 12, 24]


async def test_what_is_not_awaited_goes_along_with_the_next_that_is(runs: Runs):
    async def mix_calls(_: Any) -> Any:
        first = ONE.invoke(NumberInput(x=1))
        second = ADD.invoke(AddInput(items=[first.y], more=first.n))
        n = await second.n
        return [n, ADD.invoke(AddInput(numbers=[n])).n, first.n]

    n, again, one = await runs(mix_calls)

    assert (n, await again, await one) == (3, 3, 1)
    assert runs.shapes == [["number", "add"], ["add"]]


async def test_an_answer_without_results_is_an_answer(runs: Runs):
    async def judge_parity(x: int) -> str:
        return "even" if await ONE.invoke(NumberInput(x=x)).n % 2 == 0 else "odd"

    assert await runs(judge_parity, 7) == "odd"


async def test_an_invoke_that_calls_nothing_is_just_a_function(runs: Runs):
    async def add_one(x: int) -> int:
        return x + 1

    assert await runs(add_one, 1) == 2
    assert runs.segments == []


# Best of n, branches


async def test_equal_calls_have_seeds_of_their_own_over_segments(runs: Runs):
    async def roll_best(_: Any) -> Any:
        rolls = [await ROLL.invoke(NumberInput(x=0)).n for _ in range(2)]
        return [*rolls, *await asyncio.gather(*(ROLL.invoke(NumberInput(x=0)).n for _ in range(3)))]

    rolls = await runs(roll_best)

    assert len(set(rolls)) == 5
    assert [node.salt for segment in runs.segments for node in segment.nodes] == [0, 1, 2, 3, 4]


async def test_calls_that_only_look_alike_in_their_segments_are_not_equal(runs: Runs):
    async def roll_chain(x: int) -> Any:
        for _ in range(2):
            roll = ROLL.invoke(NumberInput(x=ONE.invoke(NumberInput(x=x)).n))
            x = await roll.n
        return x

    await runs(roll_chain, 1)

    assert runs.segments[0].nodes[1].inputs == runs.segments[1].nodes[1].inputs
    assert [segment.nodes[1].salt for segment in runs.segments] == [0, 0]


async def test_branches_share_a_segment_where_they_wait_together(runs: Runs):
    async def run_branch(x: int) -> int:
        n = await ONE.invoke(NumberInput(x=x)).n
        return int(await ADD.invoke(AddInput(more=n + 1)).n)

    async def gather_branches(_: Any) -> Any:
        return await asyncio.gather(*(run_branch(x) for x in (1, 2, 3)))

    assert await runs(gather_branches) == [2, 3, 4]
    assert runs.shapes[0] == ["number"] * 3
    assert [task for shape in runs.shapes for task in shape].count("add") == 3


async def test_branches_that_begin_a_little_later_share_it_too(runs: Runs):
    async def run_branch(x: int) -> int:
        return int(await ONE.invoke(NumberInput(x=x)).n)

    async def gather_later() -> Any:
        return await asyncio.gather(run_branch(2), run_branch(3))

    async def gather_branches(_: Any) -> Any:
        return await asyncio.gather(run_branch(1), gather_later())

    assert await runs(gather_branches) == [1, [2, 3]]
    assert runs.shapes == [["number"] * 3]


async def test_branches_may_be_tasks_of_a_group_and_nest(runs: Runs):
    async def roll_leaf(x: int) -> int:
        return int(await ROLL.invoke(NumberInput(x=0 * x)).n)

    async def run_group(_: Any) -> Any:
        async with asyncio.TaskGroup() as group:
            children = [group.create_task(roll_pair(x)) for x in (1, 2)]
        return [each.result() for each in children]

    async def roll_pair(x: int) -> Any:
        return await asyncio.gather(roll_leaf(x), roll_leaf(x))

    rolls = await runs(run_group)

    assert len({n for pair in rolls for n in pair}) == 4


async def test_a_pin_stays_in_its_branch(runs: Runs):
    async def run_branch(pin: str) -> int:
        with pinned(pin):
            first = await ONE.invoke(NumberInput(x=1)).n
            await ONE.invoke(NumberInput(x=2)).n
        return int(first)

    async def run_both(_: Any) -> Any:
        await asyncio.gather(run_branch("apart"), run_branch("together"))
        return await ONE.invoke(NumberInput(x=3)).n

    await runs(run_both)

    pinned_calls = [(node.inputs["x"], pin) for segment in runs.segments for node, pin in zip(segment.nodes, segment.pins, strict=True)]  # fmt: skip
    assert sorted(pinned_calls) == [(1, "apart"), (1, "together"), (2, "apart"), (2, "together"), (3, "")]


# Failures


async def test_an_invoke_may_catch_what_fails_and_go_on(runs: Runs):
    async def catch_failure(x: int) -> Any:
        try:
            return await STRICT.invoke(NumberInput(x=x)).n
        except BadRequest:
            return await STRICT.invoke(NumberInput(x=x + 1)).n

    assert await runs(catch_failure, 3) == 4
    assert runs.shapes == [["strict"], ["strict"]]


async def test_a_failure_that_is_not_caught_is_the_requests(runs: Runs):
    async def call_odd(_: Any) -> Any:
        return await STRICT.invoke(NumberInput(x=3)).n

    with pytest.raises(BadRequest, match="3 is odd"):
        await runs(call_odd)


async def test_a_failure_within_a_group_is_the_requests(runs: Runs):
    async def call_strict(x: int) -> Any:
        return await STRICT.invoke(NumberInput(x=x)).n

    async def call_several(_: Any) -> Any:
        async with asyncio.TaskGroup() as group:
            for x in (2, 3):
                group.create_task(call_strict(x))

    with pytest.raises(BadRequest, match="3 is odd"):
        await runs(call_several)


async def test_an_invoke_may_go_on_without_a_segment_that_nobody_runs(runs: Runs):
    class Choosy(Memory):
        async def submit(self, segment: Segment, step: int) -> Any:
            if segment.nodes[0].task == "strict":
                raise StageUnavailable("nobody runs strict", stage="strict")
            return await super().submit(segment, step)

    class Fallback(CompositeTask):
        async def invoke(self, x: int) -> Any:
            strict = STRICT.invoke(NumberInput(x=x))
            try:
                return await strict.n
            except StageUnavailable:
                return [await ONE.invoke(NumberInput(x=x)).n, strict.n]

    with use(Choosy(*ALL)):
        n, missing = await Fallback()(4)

        assert n == 4
        with pytest.raises(StageUnavailable, match="nobody runs strict"):
            await missing
        with pytest.raises(StageUnavailable):
            await STRICT(NumberInput(x=2))


async def test_a_segment_that_nobody_runs_fails_the_request_also_when_nobody_waits_for_it():
    class Nobody(Memory):
        async def submit(self, segment: Segment, step: int) -> Any:
            raise StageUnavailable("nobody is here", stage="strict")

    class CarelessTask(CompositeTask):
        async def invoke(self, x: int) -> Any:
            STRICT.invoke(NumberInput(x=x))
            return "an answer"

    with use(Nobody(*ALL)), pytest.raises(StageUnavailable, match="nobody is here"):
        await CarelessTask()(1)


async def test_an_exception_of_invoke_names_its_composite(runs: Runs):
    async def divide_by_zero(_: Any) -> Any:
        return 1 / (await ONE.invoke(NumberInput(x=0)).n)

    with pytest.raises(GraphError, match="Task.invoke failed while its graph was recorded .ZeroDivisionError"):
        await runs(divide_by_zero)


# Composites, choices, tools


class CountingTask(CompositeTask):
    async def invoke(self, x: int) -> Any:
        return await TWO.invoke(NumberInput(x=x)).n


async def test_async_composites_nest(runs: Runs):
    inner = CountingTask()

    async def nest_twice(x: int) -> Any:
        return await inner.invoke(await inner.invoke(x))

    assert await runs(nest_twice, 3) == 12


async def test_a_choice_belongs_to_the_segment_that_follows_it(runs: Runs):
    async def choose_twice(_: Any) -> Any:
        n = await ONE.invoke(NumberInput(x=choose([4, 5]))).n
        return n, await ONE.invoke(NumberInput(x=choose([6, 7, 8]))).n

    assert await runs(choose_twice, number=0) == (4, 7)
    assert [segment.choices for segment in runs.segments] == [(0,), (1,)]


async def test_a_tool_is_called_once_and_its_result_repeated(runs: Runs):
    calls: list[int] = []

    async def look_up(x: int) -> int:
        calls.append(x)
        return x + len(calls)

    async def run_agent(x: int) -> Any:
        for _ in range(2):
            x = await ONE.invoke(NumberInput(x=await tool(look_up, x))).n
        return x

    assert await runs(run_agent, 1) == 1 + 1 + 2
    assert calls == [1, 2]


async def test_a_tool_may_fail_and_be_tried_again(runs: Runs):
    calls: list[int] = []

    def fail_once(x: int) -> int:
        calls.append(x)
        if len(calls) == 1:
            raise TimeoutError("busy")
        return x

    async def retry_tool(x: int) -> Any:
        try:
            result = await tool(fail_once, x)
        except TimeoutError:
            result = await tool(fail_once, x)
        return await ONE.invoke(NumberInput(x=result)).n

    assert await runs(retry_tool, 5) == 5
    assert calls == [5, 5]
