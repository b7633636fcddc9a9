"""Tasks in ``serve``: their runtime, and the isolation of requests."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from omnibus.errors import GraphError, PlaceholderError, StageFailed
from omnibus.graph import make_ref
from omnibus.task import CompositeTask, merged, tool, use
from tests.unit.task.memory import Memory
from tests.unit.task.tasks import (
    ADD,
    ALL,
    FOLD,
    ONE,
    ROLL,
    SPELL,
    TWO,
    AddInput,
    FoldInput,
    Number,
    NumberInput,
    WordsInput,
)


class SumTask(CompositeTask):
    number: Number = ONE

    def invoke(self, x: int) -> Any:
        result = self.number.invoke(NumberInput(x=x))
        return {"y": result.y, "parts": result.parts, "n": ADD.invoke(AddInput(items=[result.y], more=1)).n}


@pytest.fixture
def runtime() -> Memory:
    return Memory(*ALL)


async def test_a_composite_is_called_and_its_results_are_read(runtime: Memory):
    with use(runtime):
        out = await SumTask()(6)

        assert (await out["n"], (await out["y"]).tolist(), await out["parts"]) == (13, [6, 6], [6, 7])


async def test_a_unit_task_is_called_by_itself(runtime: Memory):
    with use(runtime):
        out = await SPELL(WordsInput(text="abc"))

        assert [letter async for letter in out.letters] == ["a", "b", "c"]
        assert await out.count == 3


async def test_results_may_be_read_side_by_side_and_after_the_call(runtime: Memory):
    with use(runtime):
        first, second = await asyncio.gather(SumTask()(1), SumTask()(2))

    assert await asyncio.gather(first["n"], second["n"], first["n"]) == [3, 5, 3]
    assert sorted(runtime.segments) == [0, 1]


async def test_results_of_an_earlier_graph_are_inputs_of_a_later_one(runtime: Memory):
    with use(runtime):
        before = await SumTask()(6)
        after = await ADD(AddInput(one=before["y"], numbers=[before["n"]], more=before["n"]))

        assert await after.n == 12 + 13 + 13

    assert runtime.segments[1].nodes[0].inputs == {
        "items": [], "one": {"$from": [0, 0, "y"]}, "numbers": [{"$from": [0, 1, "n"]}], "more": {"$from": [0, 1, "n"]},
    }  # fmt: skip
    assert runtime.segments[1].nodes[0].uses == ()


async def test_a_stream_of_an_earlier_graph_is_awaited_first(runtime: Memory):
    with use(runtime):
        before = await SumTask()(6)

        with pytest.raises(PlaceholderError, match="is a stream of another graph: await it first and pass its value"):
            await FOLD(FoldInput(parts=before["parts"]))


class Secret(CompositeTask):
    """A task that keeps one of its results in a list."""

    kept: Any = None

    def invoke(self, results: list[Any]) -> Any:
        number = ONE.invoke(NumberInput(x=1))
        results[:] = [number.y]
        return number.n


async def test_a_result_that_was_not_returned_cannot_be_used_later(runtime: Memory):
    results: list[Any] = []
    with use(runtime):
        await Secret()(results)

        with pytest.raises(
            PlaceholderError, match="was not kept, as its `invoke` did not return it: return it as well"
        ):
            await ADD(AddInput(one=results[0]))
        with pytest.raises(PlaceholderError, match="has no value while the graph is recorded"):
            await results[0]


async def test_a_result_of_another_request_is_refused(runtime: Memory):
    with use(runtime):
        before = await SumTask()(6)
    later = Memory(*ALL)

    with (
        use(later),
        pytest.raises(PlaceholderError, match="belongs to another graph: await it first and pass its value"),
    ):
        await ADD(AddInput(one=before["y"]))
    assert later.segments == {}


async def test_equal_calls_of_one_request_get_seeds_of_their_own(runtime: Memory):
    with use(runtime):
        rolls = [await (await ROLL(NumberInput(x=0))).n for _ in range(3)]

    assert len(set(rolls)) == 3
    assert [segment.nodes[0].salt for segment in runtime.segments.values()] == [0, 1, 2]


async def test_requests_do_not_count_each_others_calls():
    rolls = []
    for _ in range(2):
        with use(Memory(*ALL)):
            rolls.append(await (await ROLL(NumberInput(x=0))).n)

    assert rolls[0] == rolls[1]


async def test_a_failure_reaches_whoever_reads(runtime: Memory):
    class BrokenNumber(Number):
        async def run(self, inputs: NumberInput) -> AsyncIterator[dict[str, Any]]:
            yield {"parts": 1}
            raise ValueError("no more")

    runtime = Memory(BrokenNumber(), *ALL)
    read = []
    with use(runtime):
        out = await BrokenNumber()(NumberInput(x=1))

        with pytest.raises(StageFailed, match="failed on this request"):
            await out.n
        with pytest.raises(StageFailed):
            read += [part async for part in out.parts]


async def test_a_task_is_called_where_something_runs_it():
    with pytest.raises(PlaceholderError, match="a task was called without a runtime: call it in an app's `serve`"):
        await ONE(NumberInput(x=1))


async def test_inside_of_invoke_tasks_are_invoked(runtime: Memory):
    class Eager(CompositeTask):
        async def invoke(self, x: int) -> Any:
            return await ONE(NumberInput(x=x))

    with use(runtime), pytest.raises(PlaceholderError, match=r"inside of `invoke` call a task's `.invoke\(...\)`"):
        await Eager()(1)


async def test_a_tool_outside_of_invoke_is_just_called():
    async def double_value(x: int) -> int:
        return x * 2

    assert await tool(max, 1, 3) == 3
    assert await tool(double_value, 4) == 8


async def test_a_request_is_recorded_with_the_step_of_its_graph(runtime: Memory):
    with use(runtime):
        with pytest.raises(GraphError):
            await SumTask()("x")  # type: ignore[arg-type]
        out = await SumTask()(2)

        assert await out["n"] == 5
    assert [segment.nodes[1].inputs["items"] for segment in runtime.segments.values()] == [[make_ref(0, "y")]]


# Several streams


async def yield_numbers(*given: int) -> AsyncIterator[int]:
    for number in given:
        yield number


async def test_streams_are_merged_with_their_names():
    pairs = [each async for each in merged({"a": yield_numbers(1, 2, 3), "b": yield_numbers(), "c": yield_numbers(4)})]

    assert sorted(pairs) == [("a", 1), ("a", 2), ("a", 3), ("c", 4)]
    assert [part for name, part in pairs if name == "a"] == [1, 2, 3]


async def test_results_are_merged(runtime: Memory):
    with use(runtime):
        out = [await task(NumberInput(x=3)) for task in (ONE, TWO)]
        pairs = [each async for each in merged({"one": out[0].parts, "two": out[1].parts})]

    assert sorted(pairs) == [("one", 3), ("one", 4), ("one", 5), ("two", 6), ("two", 7)]


async def test_no_streams_are_merged_to_nothing():
    assert [each async for each in merged({})] == []


async def test_a_merge_fails_with_the_first_that_fails_and_closes_the_others():
    closings = []

    async def yield_forever() -> AsyncIterator[int]:
        try:
            while True:
                yield 1
                await asyncio.sleep(0)
        finally:
            closings.append(True)

    async def yield_then_fail() -> AsyncIterator[int]:
        yield 2
        raise StageFailed("no more")

    parts = []
    with pytest.raises(StageFailed, match="no more"):
        async for name, part in merged({"a": yield_forever(), "b": yield_then_fail()}):
            parts += [part] if name == "b" else []

    assert parts == [2]
    assert closings == [True]
    assert len(asyncio.all_tasks()) == 1


async def test_a_merge_that_is_left_early_leaves_nothing_behind():
    merging = merged({"a": yield_numbers(1, 2), "b": yield_numbers(3)})

    async for _ in merging:
        break
    await merging.aclose()  # type: ignore[attr-defined]

    assert len(asyncio.all_tasks()) == 1
