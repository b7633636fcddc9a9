"""The second run of an async ``invoke`` detects nondeterministic ones."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from omnibus.errors import BadRequest, GraphError, PlaceholderError, ReplayMismatch
from omnibus.task import choose, tool
from tests.unit.task.memory import Runs
from tests.unit.task.tasks import ADD, ONE, SPELL, STRICT, TWO, AddInput, NumberInput, WordsInput


@pytest.fixture
def runs() -> Runs:
    return Runs()


def make_sequence(first: Any, second: Any) -> Callable[[], Any]:
    """Return ``first`` in the first run and ``second`` in the next."""
    values = iter([first, second])
    return lambda: next(values)


async def call_one(x: int) -> int:
    return int(await ONE.invoke(NumberInput(x=x)).n)


# Detected


def random_branch() -> Any:
    coin = make_sequence(True, False)

    async def invoke(_: Any) -> Any:
        await call_one(1)
        return await (ONE if coin() else TWO).invoke(NumberInput(x=2)).n

    return invoke


def other_inputs() -> Any:
    clock = count()

    async def invoke(_: Any) -> Any:
        return await call_one(next(clock))

    return invoke


def fewer_calls() -> Any:
    coin = make_sequence(True, False)

    async def invoke(_: Any) -> Any:
        if coin():
            ADD.invoke(AddInput(more=1))
        return await call_one(1)

    return invoke


def other_order() -> Any:
    order = make_sequence((1, 2), (2, 1))

    async def invoke(_: Any) -> Any:
        first, second = order()
        results = [ONE.invoke(NumberInput(x=each)) for each in (first, second)]
        return ADD.invoke(AddInput(items=[each.y for each in results])).n

    return invoke


def other_results() -> Any:
    pick_index = make_sequence(0, 1)

    async def invoke(_: Any) -> Any:
        results = [ONE.invoke(NumberInput(x=1)).n, ONE.invoke(NumberInput(x=1)).n]
        await results[0]
        return results[pick_index()]

    return invoke


def reads_more() -> Any:
    read_limit = make_sequence(1, 3)

    async def invoke(_: Any) -> Any:
        characters, limit = [], read_limit()
        async for letter in SPELL.invoke(WordsInput(text="abcdef")).letters:
            characters.append(letter)
            if len(characters) == limit:
                break
        return "".join(characters)

    return invoke


def reads_another() -> Any:
    coin = make_sequence(True, False)

    async def invoke(_: Any) -> Any:
        results = ONE.invoke(NumberInput(x=1)), ONE.invoke(NumberInput(x=2))
        return await results[0 if coin() else 1].n

    return invoke


def reads_otherwise() -> Any:
    coin = make_sequence(True, False)

    async def invoke(_: Any) -> Any:
        letters = SPELL.invoke(WordsInput(text="ab")).letters
        return await letters if coin() else "".join([letter async for letter in letters])

    return invoke


def other_options() -> Any:
    options = make_sequence([1, 2], [1, 2, 3])

    async def invoke(_: Any) -> Any:
        return await call_one(0 * choose(options()))

    return invoke


def other_tool() -> Any:
    clock = count()

    async def invoke(_: Any) -> Any:
        return await call_one(0 * await tool(abs, next(clock)))

    return invoke


def swallow_mismatch() -> Any:
    coin = make_sequence(True, False)

    async def invoke(_: Any) -> Any:
        await call_one(1)
        try:
            return await (ONE if coin() else TWO).invoke(NumberInput(x=2)).n
        except GraphError:
            return await call_one(2)

    return invoke


CAUGHT: dict[str, tuple[Callable[[], Any], str]] = {
    "a random branch": (random_branch, "a call of number-scale_2 is not in the record, or got other inputs"),
    "other inputs": (other_inputs, "a call of number is not in the record, or got other inputs"),
    "fewer calls": (fewer_calls, "replay did not call add, which the record has"),
    "other references": (other_order, "a call of add is not in the record, or got other inputs"),
    "other results": (other_results, "replay returned other results than the record has"),
    "reading more": (reads_more, "reads more of <stream 'letters' of spell .*> on replay than before"),
    "reading another": (reads_another, "reads <value 'n' of number .*> on replay, and did not before"),
    "reading otherwise": (reads_otherwise, "reads more of <stream 'letters' of spell"),
    "other options": (other_options, "chose among other options on replay"),
    "another tool": (other_tool, "called the tool builtins.abs on replay, or with other arguments"),
    "a mismatch that is swallowed": (swallow_mismatch, "a call of number-scale_2 is not in the record"),
}


@pytest.mark.parametrize(("make", "message"), CAUGHT.values(), ids=CAUGHT.keys())
async def test_an_invoke_that_does_otherwise_is_found_out(runs: Runs, make: Callable[[], Any], message: str):
    with pytest.raises(
        ReplayMismatch, match=f"{message}.*: `invoke` must not depend on time, randomness or anything outside"
    ):
        await runs(make())


async def test_a_tool_that_was_left_running_is_found_out(runs: Runs):
    forever: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def slow() -> None:
        await forever

    async def leave_tool(slowly: Any) -> Any:
        left = asyncio.ensure_future(tool(slowly))
        return await call_one(1), left

    with pytest.raises(ReplayMismatch, match="waited for the tool .*slow on replay, and did not before"):
        await runs(leave_tool, slow)
    forever.cancel()


async def test_a_look_that_is_swallowed_is_refused_all_the_same(runs: Runs):
    async def swallow_look(_: Any) -> Any:
        number = ONE.invoke(NumberInput(x=1))
        try:
            return 1 if number.n > 3 else 2
        except PlaceholderError:
            return await number.n

    with pytest.raises(PlaceholderError, match="has no value while the graph is recorded"):
        await runs(swallow_look)


async def test_a_task_that_outlives_its_invoke_cannot_go_on(runs: Runs):
    left: list[asyncio.Future[Any]] = []
    go = asyncio.Event()

    async def run_behind() -> Any:
        await go.wait()
        return ONE.invoke(NumberInput(x=2)).n

    async def leave_task(futures: list[asyncio.Future[Any]]) -> Any:
        futures.append(asyncio.ensure_future(run_behind()))
        return await call_one(1)

    assert await runs(leave_task, left) == 1
    go.set()

    for each in left:
        with pytest.raises(PlaceholderError, match="inside of a composite task's `invoke`, while it runs"):
            await each
    assert runs.shapes == [["number"]]


# Accepted


class OrderGates:
    """Makes branches continue in a chosen order, in the first run only."""

    def __init__(self, *order: str) -> None:
        self._gates = {name: asyncio.Event() for name in order}
        self._order = list(order)

    async def pass_on(self, name: str) -> None:
        """Wait until all before ``name`` have passed; then let the next one pass."""
        index = self._order.index(name)
        if index:
            await self._gates[self._order[index - 1]].wait()
        self._gates[name].set()


async def test_equal_branches_get_back_what_was_their_own(runs: Runs):
    gates = OrderGates("b", "a")
    lots = iter([3, 4])

    async def run_branch(name: str, x: int) -> Any:
        n = await call_one(x)
        await tool(gates.pass_on, name)
        lot = await tool(next, lots)
        option = choose([10, 20, 30])
        same = ONE.invoke(NumberInput(x=7))
        await same.n
        return ADD.invoke(AddInput(items=[same.y], numbers=[n, lot, option])).n

    async def run_both(_: Any) -> Any:
        return await asyncio.gather(run_branch("a", 1), run_branch("b", 2))

    first, second = await runs(run_both)

    assert sorted([await first, await second]) == sorted([14 + 1 + 4 + 20, 14 + 2 + 3 + 10])


async def test_workers_that_share_a_queue_may_swap_their_work(runs: Runs):
    gates = OrderGates("2", "1", "3")

    async def work_queue(queue: "asyncio.Queue[int]") -> list[int]:
        results = []
        while not queue.empty():
            x = queue.get_nowait()
            n = await call_one(x)
            await tool(gates.pass_on, str(x))
            results.append(n)
        return results

    async def run_pool(_: Any) -> Any:
        queue: asyncio.Queue[int] = asyncio.Queue()
        for x in (1, 2, 3):
            queue.put_nowait(x)
        first, second = await asyncio.gather(work_queue(queue), work_queue(queue))
        return sorted(first + second)

    assert await runs(run_pool) == [1, 2, 3]


async def test_a_failing_stream_fails_again_where_it_failed(runs: Runs):
    async def catch_failure(_: Any) -> Any:
        try:
            return await STRICT.invoke(NumberInput(x=1)).n
        except BadRequest as error:
            return await call_one(len(error.message))

    assert await runs(catch_failure) == len("1 is odd")
