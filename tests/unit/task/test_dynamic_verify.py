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


def once(first: Any, second: Any) -> Callable[[], Any]:
    """Return ``first`` in the first run and ``second`` in the next."""
    given = iter([first, second])
    return lambda: next(given)


async def one(x: int) -> int:
    return int(await ONE.invoke(NumberInput(x=x)).n)


# Detected


def random_branch() -> Any:
    coin = once(True, False)

    async def invoke(_: Any) -> Any:
        await one(1)
        return await (ONE if coin() else TWO).invoke(NumberInput(x=2)).n

    return invoke


def other_inputs() -> Any:
    clock = count()

    async def invoke(_: Any) -> Any:
        return await one(next(clock))

    return invoke


def fewer_calls() -> Any:
    coin = once(True, False)

    async def invoke(_: Any) -> Any:
        if coin():
            ADD.invoke(AddInput(more=1))
        return await one(1)

    return invoke


def other_order() -> Any:
    order = once((1, 2), (2, 1))

    async def invoke(_: Any) -> Any:
        first, second = order()
        made = [ONE.invoke(NumberInput(x=each)) for each in (first, second)]
        return ADD.invoke(AddInput(items=[each.y for each in made])).n

    return invoke


def other_results() -> Any:
    which = once(0, 1)

    async def invoke(_: Any) -> Any:
        made = [ONE.invoke(NumberInput(x=1)).n, ONE.invoke(NumberInput(x=1)).n]
        await made[0]
        return made[which()]

    return invoke


def reads_more() -> Any:
    wanted = once(1, 3)

    async def invoke(_: Any) -> Any:
        found, limit = [], wanted()
        async for letter in SPELL.invoke(WordsInput(text="abcdef")).letters:
            found.append(letter)
            if len(found) == limit:
                break
        return "".join(found)

    return invoke


def reads_another() -> Any:
    coin = once(True, False)

    async def invoke(_: Any) -> Any:
        made = ONE.invoke(NumberInput(x=1)), ONE.invoke(NumberInput(x=2))
        return await made[0 if coin() else 1].n

    return invoke


def reads_otherwise() -> Any:
    coin = once(True, False)

    async def invoke(_: Any) -> Any:
        letters = SPELL.invoke(WordsInput(text="ab")).letters
        return await letters if coin() else "".join([letter async for letter in letters])

    return invoke


def other_options() -> Any:
    options = once([1, 2], [1, 2, 3])

    async def invoke(_: Any) -> Any:
        return await one(0 * choose(options()))

    return invoke


def other_tool() -> Any:
    clock = count()

    async def invoke(_: Any) -> Any:
        return await one(0 * await tool(abs, next(clock)))

    return invoke


def swallows() -> Any:
    coin = once(True, False)

    async def invoke(_: Any) -> Any:
        await one(1)
        try:
            return await (ONE if coin() else TWO).invoke(NumberInput(x=2)).n
        except GraphError:
            return await one(2)

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
    "a mismatch that is swallowed": (swallows, "a call of number-scale_2 is not in the record"),
}


@pytest.mark.parametrize(("make", "said"), CAUGHT.values(), ids=CAUGHT.keys())
async def test_an_invoke_that_does_otherwise_is_found_out(runs: Runs, make: Callable[[], Any], said: str):
    with pytest.raises(
        ReplayMismatch, match=f"{said}.*: `invoke` must not depend on time, randomness or anything outside"
    ):
        await runs(make())


async def test_a_tool_that_was_left_running_is_found_out(runs: Runs):
    forever: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def slow() -> None:
        await forever

    async def impatient(slowly: Any) -> Any:
        left = asyncio.ensure_future(tool(slowly))
        return await one(1), left

    with pytest.raises(ReplayMismatch, match="waited for the tool .*slow on replay, and did not before"):
        await runs(impatient, slow)
    forever.cancel()


async def test_a_look_that_is_swallowed_is_refused_all_the_same(runs: Runs):
    async def careless(_: Any) -> Any:
        found = ONE.invoke(NumberInput(x=1))
        try:
            return 1 if found.n > 3 else 2
        except PlaceholderError:
            return await found.n

    with pytest.raises(PlaceholderError, match="has no value while the graph is recorded"):
        await runs(careless)


async def test_a_task_that_outlives_its_invoke_cannot_go_on(runs: Runs):
    left: list[asyncio.Future[Any]] = []
    go = asyncio.Event()

    async def behind() -> Any:
        await go.wait()
        return ONE.invoke(NumberInput(x=2)).n

    async def careless(given: list[asyncio.Future[Any]]) -> Any:
        given.append(asyncio.ensure_future(behind()))
        return await one(1)

    assert await runs(careless, left) == 1
    go.set()

    for each in left:
        with pytest.raises(PlaceholderError, match="inside of a composite task's `invoke`, while it runs"):
            await each
    assert runs.shapes == [["number"]]


# Accepted


class Slow:
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
    gates = Slow("b", "a")
    lots = iter([3, 4])

    async def branch(name: str, x: int) -> Any:
        n = await one(x)
        await tool(gates.pass_on, name)
        lot = await tool(next, lots)
        option = choose([10, 20, 30])
        same = ONE.invoke(NumberInput(x=7))
        await same.n
        return ADD.invoke(AddInput(items=[same.y], numbers=[n, lot, option])).n

    async def both(_: Any) -> Any:
        return await asyncio.gather(branch("a", 1), branch("b", 2))

    first, second = await runs(both)

    assert sorted([await first, await second]) == sorted([14 + 1 + 4 + 20, 14 + 2 + 3 + 10])


async def test_workers_that_share_a_queue_may_swap_their_work(runs: Runs):
    gates = Slow("2", "1", "3")

    async def worker(queue: "asyncio.Queue[int]") -> list[int]:
        done = []
        while not queue.empty():
            x = queue.get_nowait()
            n = await one(x)
            await tool(gates.pass_on, str(x))
            done.append(n)
        return done

    async def pool(_: Any) -> Any:
        queue: asyncio.Queue[int] = asyncio.Queue()
        for x in (1, 2, 3):
            queue.put_nowait(x)
        first, second = await asyncio.gather(worker(queue), worker(queue))
        return sorted(first + second)

    assert await runs(pool) == [1, 2, 3]


async def test_a_failing_stream_fails_again_where_it_failed(runs: Runs):
    async def careful(_: Any) -> Any:
        try:
            return await STRICT.invoke(NumberInput(x=1)).n
        except BadRequest as error:
            return await one(len(error.message))

    assert await runs(careful) == len("1 is odd")
