"""Results of earlier segments in later ones and in async ``invoke``."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from omnibus.errors import PlaceholderError, StreamConsumed
from omnibus.graph import make_ref
from omnibus.task import CompositeTask, Segment, tool, use
from tests.unit.task.memory import Memory, Reading, Runs
from tests.unit.task.tasks import ADD, ALL, FOLD, ONE, SPELL, TWO, AddInput, FoldInput, NumberInput, WordsInput


@pytest.fixture
def runs() -> Runs:
    return Runs()


async def test_a_tensor_of_an_earlier_segment_goes_by_value(runs: Runs):
    async def reuse_tensor(_: Any) -> Any:
        first = ONE.invoke(NumberInput(x=5))
        await first.n
        return ADD.invoke(AddInput(items=[first.y, first.y], one=first.y, numbers=[first.n])).n

    assert await (await runs(reuse_tensor)) == 35
    place = {"$from": [0, 0, "y"]}
    assert runs.segments[1].nodes[0].inputs == {
        "items": [place, place], "one": place, "numbers": [{"$from": [0, 0, "n"]}], "more": 0,
    }  # fmt: skip


async def test_a_stream_of_an_earlier_segment_runs_again_with_all_that_it_needs(runs: Runs):
    async def fold_again(_: Any) -> Any:
        first = TWO.invoke(NumberInput(x=3))
        sums = FOLD.invoke(FoldInput(parts=first.parts, start=first.n))
        await sums.n
        return [FOLD.invoke(FoldInput(parts=sums.sums)).n, FOLD.invoke(FoldInput(parts=sums.sums, start=1)).n]

    assert [await each for each in await runs(fold_again)] == [12 + 19, 12 + 19 + 1]
    assert runs.shapes == [["number-scale_2", "fold"], ["number-scale_2", "fold", "fold", "fold"]]
    again = runs.segments[1].nodes[1].inputs
    assert again == {"parts": make_ref(0, "parts"), "start": {"$from": [0, 0, "n"]}, "other": None}


async def test_a_node_that_runs_again_has_the_same_seed(runs: Runs):
    async def repeat_node(_: Any) -> Any:
        ONE.invoke(NumberInput(x=2))
        second = ONE.invoke(NumberInput(x=2))
        await second.n
        return FOLD.invoke(FoldInput(parts=second.parts)).n

    await runs(repeat_node)

    assert [node.salt for node in runs.segments[1].nodes] == [1, 0]


async def test_a_part_that_is_made_on_demand_is_made_when_it_is_awaited_late(runs: Runs):
    async def read_late(_: Any) -> Any:
        first = ONE.invoke(NumberInput(x=4))
        await first.n
        array = await first.late
        return [array.tolist(), ADD.invoke(AddInput(one=first.late)).n, first.late]

    array, total, again = await runs(read_late)

    assert (array, await total, (await again).tolist()) == ([4, 1], 5, [4, 1])
    assert runs.shapes == [["number"], ["number"], ["add"]]
    assert runs.segments[2].nodes[0].inputs["one"] == {"$from": [1, 0, "late"]}


async def test_a_part_that_is_made_on_demand_is_not_made_otherwise(runs: Runs):
    async def skip_late(_: Any) -> Any:
        return ONE.invoke(NumberInput(x=4)).n

    await runs(skip_late)

    assert runs.segments[0].outputs == ((0, "y"), (0, "n"), (0, "parts"))


async def test_late_parts_of_an_answer_share_the_last_segment(runs: Runs):
    async def return_late(_: Any) -> Any:
        first, second = ONE.invoke(NumberInput(x=4)), ONE.invoke(NumberInput(x=5))
        await first.n
        return [first.late, second.late, ADD.invoke(AddInput(more=1)).n, first.parts.transform(str)]

    first, second, n, parts = await runs(return_late)

    assert ((await first).tolist(), (await second).tolist(), await n, await parts) == ([4, 1], [5, 1], 1, [])
    assert runs.shapes == [["number", "number"], ["add", "number", "number"]]


# Reading


async def test_a_stream_may_be_read_to_its_end(runs: Runs):
    async def measure_letters(_: Any) -> Any:
        characters = [letter async for letter in SPELL.invoke(WordsInput(text="abc")).letters]
        return ONE.invoke(NumberInput(x=len(characters))).n

    assert await (await runs(measure_letters)) == 3


async def test_a_stream_may_be_left_early(runs: Runs):
    async def first_letters(_: Any) -> Any:
        prefix = ""
        async for letter in SPELL.invoke(WordsInput(text="abcdef")).letters:
            prefix += letter
            if len(prefix) == 2:
                break
        return SPELL.invoke(WordsInput(text=prefix, loud=True)).letters

    assert await (await runs(first_letters)) == "AB"


async def test_a_stream_that_invoke_has_read_is_read(runs: Runs):
    async def read_whole(_: Any) -> Any:
        letters = SPELL.invoke(WordsInput(text="ab")).letters
        return [await letters, await letters, letters]

    first, second, letters = await runs(read_whole)

    assert (first, second, await letters) == ("ab", "ab", "ab")
    with pytest.raises(StreamConsumed):
        letters.__aiter__()


async def test_a_stream_is_read_once_by_invoke_too(runs: Runs):
    async def read_twice(_: Any) -> Any:
        letters = SPELL.invoke(WordsInput(text="ab")).letters
        characters = [letter async for letter in letters.transform(str.upper)]
        return characters, await letters

    with pytest.raises(StreamConsumed, match="<stream 'letters' of spell .* was read already"):
        await runs(read_twice)


async def test_deciding_on_what_was_not_awaited_is_refused(runs: Runs):
    async def decide_early(_: Any) -> Any:
        number = ONE.invoke(NumberInput(x=1))
        await number.y
        return 1 if number.n else 2

    with pytest.raises(PlaceholderError, match="must be read first: `await` it, or iterate with `async for`"):
        await runs(decide_early)


class SlowToSend(Memory):
    """A runtime that delays its first segment, which others can overtake."""

    async def submit(self, segment: Segment, step: int) -> Mapping[tuple[int, str], Reading]:
        if step == 0:
            for _ in range(50):
                await asyncio.sleep(0)
        return await super().submit(segment, step)


async def wait_turns() -> int:
    for _ in range(5):
        await asyncio.sleep(0)
    return 0


async def test_a_branch_may_refer_to_a_result_of_a_segment_that_is_still_being_sent():
    class Branches(CompositeTask):
        async def invoke(self, _: Any) -> Any:
            twice = TWO.invoke(NumberInput(x=3))

            async def add_result() -> int:
                await tool(wait_turns)  # the other branch has its segment sent
                return await ADD.invoke(AddInput(numbers=[twice.n])).n

            async def call_one() -> int:
                return await ONE.invoke(NumberInput(x=1)).n

            return await asyncio.gather(call_one(), add_result())

    runtime = SlowToSend(*ALL)
    with use(runtime):
        assert await Branches()(None) == [1, 6]

    assert [[node.task for node in segment.nodes] for segment in runtime.segments.values()] == [
        ["number-scale_2", "number"],
        ["add"],
    ]
