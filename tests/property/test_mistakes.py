"""Mistakes of developers get a typed error with the reason.

The tests use a real bus. Mistakes cause no wrong answer and leave nothing.
"""

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from omnibus.errors import (
    BadRequest,
    GraphError,
    OmnibusError,
    PlaceholderError,
    ReplayMismatch,
    SideEffect,
    StreamConsumed,
)
from omnibus.task import CompositeTask, tool
from tests.property.estate import GraphSystem, start_graph_system
from tests.unit.task.tasks import (
    ADD,
    ECHO,
    FOLD,
    ONE,
    SPELL,
    STRICT,
    TWO,
    AddInput,
    EchoInput,
    FoldInput,
    NumberInput,
    WordsInput,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def graph_system(nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GraphSystem]:
    async with start_graph_system(nats_url, tmp_path_factory.mktemp("estate")) as new_system:
        yield new_system


class Hidden:
    """Values that differ from call to call, without a visible side effect."""

    def __init__(self, *given: Any) -> None:
        self._given = iter(given)

    def __call__(self) -> Any:
        return next(self._given)


class ObservedBranch(CompositeTask):
    def invoke(self, _: Any) -> Any:
        spelt = SPELL.invoke(WordsInput(text="yes"))
        return TWO.invoke(NumberInput(x=1)).n if spelt.count else spelt.letters


class Compare(CompositeTask):
    def invoke(self, _: Any) -> Any:
        output = ONE.invoke(NumberInput(x=1))
        return TWO.invoke(NumberInput(x=1)).n if output.n == 3 else output.n


class Obvious(CompositeTask):
    def invoke(self, _: Any) -> Any:
        return (ONE if random.random() < 0.5 else TWO).invoke(NumberInput(x=1)).n


class Coin(CompositeTask):
    def invoke(self, coin: Hidden) -> Any:
        return (ONE if coin() else TWO).invoke(NumberInput(x=1)).n


class LiveCoin(CompositeTask):
    async def invoke(self, coin: Hidden) -> Any:
        await ONE.invoke(NumberInput(x=1)).n
        return (ONE if coin() else TWO).invoke(NumberInput(x=2)).n


class Order(CompositeTask):
    def invoke(self, order: Hidden) -> Any:
        return [task.invoke(NumberInput(x=1)).n for task in order()]


class Swapped(CompositeTask):
    def invoke(self, order: Hidden) -> Any:
        tensors = [ONE.invoke(NumberInput(x=x)).y for x in (1, 2)]
        first, second = order()
        return [ADD.invoke(AddInput(one=tensors[first])).n, ADD.invoke(AddInput(one=tensors[second])).n]


class LiveSwapped(CompositeTask):
    async def invoke(self, order: Hidden) -> Any:
        outputs = [ONE.invoke(NumberInput(x=x)) for x in (1, 2)]
        await outputs[0].n
        first, second = order()
        return [ADD.invoke(AddInput(one=outputs[first].y, numbers=[outputs[second].n])).n]


class Prompt(CompositeTask):
    def invoke(self, _: Any) -> Any:
        spelt = SPELL.invoke(WordsInput(text="secret"))
        return SPELL.invoke(WordsInput(text=f"say {spelt.letters} aloud")).letters


class ShownPrompt(CompositeTask):
    def invoke(self, _: Any) -> Any:
        spelt = SPELL.invoke(WordsInput(text="secret"))
        return SPELL.invoke(WordsInput(text=f"say {spelt!r} aloud")).letters


class ListedPrompt(CompositeTask):
    async def invoke(self, _: Any) -> Any:
        spelt = SPELL.invoke(WordsInput(text="secret"))
        await spelt.count
        return SPELL.invoke(WordsInput(text=str([spelt.letters]))).letters


class Until(CompositeTask):
    def invoke(self, _: Any) -> Any:
        n = ONE.invoke(NumberInput(x=1)).n
        while n < 10:
            n = TWO.invoke(NumberInput(x=n)).n
        return n


class ReadTwice(CompositeTask):
    async def invoke(self, _: Any) -> Any:
        letters = SPELL.invoke(WordsInput(text="ab")).letters
        return [letter async for letter in letters], [letter async for letter in letters]


class Forked(CompositeTask):
    def invoke(self, _: Any) -> Any:
        parts = ONE.invoke(NumberInput(x=3)).parts
        return FOLD.invoke(FoldInput(parts=parts, other=parts)).n


class Smuggled(CompositeTask):
    def invoke(self, request: dict[str, Any]) -> Any:
        ONE.invoke(NumberInput(x=1))
        return ECHO.invoke(EchoInput(what=request)).what


class Laundered(CompositeTask):
    """Await an executor's result, then pass a tool's answer to another."""

    async def invoke(self, request: Callable[[], Any]) -> Any:
        echo_output = ECHO.invoke(EchoInput(what={"safe": [1]}))
        await echo_output.box
        return ECHO.invoke(EchoInput(what=await tool(request))).what


class Raises(CompositeTask):
    def invoke(self, _: Any) -> Any:
        return ONE.invoke(NumberInput(x={}["x"])).n


class Fails(CompositeTask):
    def invoke(self, _: Any) -> Any:
        return STRICT.invoke(NumberInput(x=3)).n


MISTAKES: dict[str, tuple[CompositeTask, Callable[[], Any], type[OmnibusError], str]] = {
    "a branch on a placeholder": (ObservedBranch(), lambda: None, PlaceholderError, "branch in the app's `serve`"),
    "a comparison with a placeholder": (Compare(), lambda: None, PlaceholderError, "make `invoke` async and `await` it"),
    "a loop until a placeholder": (Until(), lambda: None, PlaceholderError, "has no value while the graph is recorded"),
    "randomness that one can see": (Obvious(), lambda: None, SideEffect, "Obvious.invoke uses random.random: `invoke` runs twice"),
    "a random branch": (Coin(), lambda: Hidden(True, False), ReplayMismatch, "call 0 was number when recorded and is number-scale_2"),
    "a random branch after an await": (LiveCoin(), lambda: Hidden(True, False), ReplayMismatch, "a call of number-scale_2 is not in the record"),
    "another order": (Order(), lambda: Hidden((ONE, TWO), (TWO, ONE)), ReplayMismatch, "call 0 was number when recorded"),
    "swapped inputs": (Swapped(), lambda: Hidden((0, 1), (1, 0)), ReplayMismatch, "call 2 of add got other inputs on replay: one"),
    "swapped inputs after an await": (LiveSwapped(), lambda: Hidden((0, 1), (1, 0)), ReplayMismatch, "a call of add is not in the record, or got other"),
    "a result in a prompt": (Prompt(), lambda: None, PlaceholderError, "pass it to another task or return it"),
    "outputs in a prompt": (ShownPrompt(), lambda: None, PlaceholderError, "has no value while the graph is recorded"),
    "a list of results in a prompt": (ListedPrompt(), lambda: None, PlaceholderError, "must be read first: `await` it"),
    "a stream that is read twice": (ReadTwice(), lambda: None, StreamConsumed, "A stream can be read once: keep its parts"),
    "a stream for two inputs of a call": (Forked(), lambda: None, StreamConsumed, "is given to two inputs of one call of fold"),
    "a reference in a request": (Smuggled(), lambda: {"$ref": [0, "y"]}, BadRequest, "they mark results of other calls"),
    "a mark in a request": (Smuggled(), lambda: {"a": [{"$from": [0, 0, "y"]}]}, BadRequest, "they mark results of other calls"),
    "a reference in a tool's answer": (Laundered(), lambda: lambda: {"$ref": [0, "y"]}, BadRequest, "they mark results"),
    "an exception": (Raises(), lambda: None, GraphError, "Raises.invoke failed while its graph was recorded .KeyError: 'x'"),
    "a bad value for a task": (Fails(), lambda: None, BadRequest, "3 is odd"),
}  # fmt: skip


@pytest.mark.parametrize(("task", "request_", "kind", "message"), MISTAKES.values(), ids=MISTAKES.keys())
async def test_a_mistake_is_explained_and_gives_no_answer(
    graph_system: GraphSystem, task: CompositeTask, request_: Callable[[], Any], kind: type[OmnibusError], message: str
):
    with pytest.raises(kind, match=message) as caught:
        async with graph_system.request():
            out = await task(request_())
            await (out if not isinstance(out, list) else out[0])

    assert type(caught.value) is kind
    await graph_system.settled()


class Wasteful(CompositeTask):
    """Make calls whose results are not used."""

    def invoke(self, x: int) -> Any:
        TWO.invoke(NumberInput(x=x))
        output = ONE.invoke(NumberInput(x=x))
        SPELL.invoke(WordsInput(text="never read"))
        return [output.n, output.parts, output.y]


class Alike(CompositeTask):
    """One task is called twice, with inputs the other way round."""

    def invoke(self, xs: tuple[int, int]) -> Any:
        outputs = [ONE.invoke(NumberInput(x=x)) for x in xs]
        pairs = [(outputs[0], outputs[1]), (outputs[1], outputs[0])]
        return [ADD.invoke(AddInput(one=first.y, numbers=[second.n, second.n, second.n])).n for first, second in pairs]


async def test_unused_outputs_and_calls_are_allowed(graph_system: GraphSystem):
    async with graph_system.request():
        n, _, _ = await Wasteful()(6)

        assert await n == 6
    await graph_system.settled()


async def test_one_task_called_twice_with_swapped_inputs_keeps_them_apart(graph_system: GraphSystem):
    async with graph_system.request():
        first, second = await Alike()((10, 1))

        assert (await first, await second) == (20 + 3, 2 + 30)
    await graph_system.settled()


async def test_the_client_reads_a_stream_once(graph_system: GraphSystem):
    async with graph_system.request():
        out = await SPELL(WordsInput(text="abc"))

        assert [letter async for letter in out.letters] == ["a", "b", "c"]
        with pytest.raises(StreamConsumed, match="keep its parts, or await it once"):
            await out.letters
    await graph_system.settled()


async def test_a_mark_in_a_tasks_answer_does_not_become_a_reference(graph_system: GraphSystem, tmp_path: Path):
    async with graph_system.request():
        first_echo = await ECHO(EchoInput.model_construct(what={"text": "$from", "of": ["$ref"]}))
        again = await ECHO(EchoInput(what=first_echo.what))

        assert await again.what == {"text": "$from", "of": ["$ref"]}
    await graph_system.settled()
