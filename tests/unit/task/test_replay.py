"""Replay: the answer with its results, and every way in which it may leave the record."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from omnibus.errors import GraphError, PlaceholderError, ReplayMismatch, StreamConsumed
from omnibus.task import Segment, pinned, record, replay
from omnibus.tensors.item import Item
from tests.unit.task.tasks import ADD, FOLD, ONE, SPELL, TWO, AddInput, FoldInput, Number, NumberInput, WordsInput


class Kept:
    """A source with all its items available."""

    def __init__(self, *items: dict[str, Any]) -> None:
        self.items = [Item(data) for data in items]

    async def next_items(self) -> list[Item]:
        items, self.items = self.items, []
        return items


def sources(recorded: Segment) -> dict[tuple[int, str], Kept]:
    return {origin: Kept({"value": index}) for index, origin in enumerate(recorded.outputs)}


def again(invoke: Callable[[Any], Any], request: Any, recorded: Segment) -> Any:
    return replay(invoke, request, recorded, sources(recorded))


def pair(x: Any) -> Any:
    found = ONE.invoke(NumberInput(x=x))
    return [found.n, ADD.invoke(AddInput(items=[found.y], more=found.n)).n]


async def test_replay_returns_the_answer_with_its_results():
    recorded = record(pair, 1)

    one, total = again(pair, 1, recorded)

    assert (await one, await total) == (0, 1)


def test_a_record_may_be_replayed_again():
    recorded = record(pair, 1)

    assert [[each.origin for each in again(pair, 1, recorded)] for _ in range(2)] == [[(0, "n"), (1, "n")]] * 2


async def test_what_was_not_returned_cannot_be_read():
    seen: list[Any] = []

    def spying(x: Any) -> Any:
        found = ONE.invoke(NumberInput(x=x))
        seen.append(found.y)
        return found.n

    again(spying, 1, record(spying, 1))

    with pytest.raises(PlaceholderError, match="<tensor 'y' of number"):
        await seen[-1]


def one_then_two(_: Any) -> Any:
    ONE.invoke(NumberInput(x=1))
    return TWO.invoke(NumberInput(x=1)).n


def two_then_one(_: Any) -> Any:
    TWO.invoke(NumberInput(x=1))
    return ONE.invoke(NumberInput(x=1)).n


def only_one(_: Any) -> Any:
    return ONE.invoke(NumberInput(x=1)).n


def counted(x: Any) -> Any:
    return ONE.invoke(NumberInput(x=len(x), about=x)).n


MISMATCHES: dict[str, tuple[Any, Any, Any, Any, str]] = {
    "another order": (one_then_two, two_then_one, 0, 0, "call 0 was number when recorded and is number-scale_2 on replay"),
    "more calls": (only_one, one_then_two, 0, 0, "call 1 of number-scale_2 is not in the record"),
    "fewer calls": (one_then_two, only_one, 0, 0, "call 0 was number .*|made 1 calls, the record has 2"),
    "other inputs": (pair, pair, 1, 2, "call 0 of number got other inputs on replay: x"),
    "an input less": (counted, counted, {"a": 1, "b": 2}, {"a": 1}, "call 0 of number got other inputs on replay: about, x"),
    "no call": (only_one, lambda _: None, 0, 0, "made 0 calls, the record has 1"),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "asked", "now", "message"), MISMATCHES.values(), ids=MISMATCHES.keys())
def test_a_replay_that_leaves_the_record_is_refused(before: Any, after: Any, asked: Any, now: Any, message: str):
    recorded = record(before, asked)

    with pytest.raises(ReplayMismatch, match=message):
        again(after, now, recorded)


def test_swapped_inputs_of_one_task_are_refused():
    order = iter([(1, 2), (2, 1)])

    def swapping(_: Any) -> Any:
        first, second = next(order)
        return [ONE.invoke(NumberInput(x=first)).n, ONE.invoke(NumberInput(x=second)).n]

    recorded = record(swapping, None)

    with pytest.raises(ReplayMismatch, match="call 0 of number got other inputs on replay: x"):
        again(swapping, None, recorded)


def test_swapped_references_are_refused():
    order = iter([(0, 1), (1, 0)])

    def swapping(_: Any) -> Any:
        made = [ONE.invoke(NumberInput(x=7)).y, ONE.invoke(NumberInput(x=7)).y]
        first, second = next(order)
        return ADD.invoke(AddInput(items=[made[first], made[second]])).n

    recorded = record(swapping, None)

    with pytest.raises(ReplayMismatch, match="call 2 of add got other inputs on replay: items"):
        again(swapping, None, recorded)


def test_another_task_of_the_same_class_is_refused():
    recorded = record(only_one, None)

    with pytest.raises(ReplayMismatch, match="call 0 was number when recorded and is number-scale_3"):
        again(lambda _: Number(scale=3).invoke(NumberInput(x=1)).n, None, recorded)


def test_a_random_branch_is_caught():
    coin = iter([True, False])

    def random(_: Any) -> Any:
        return (ONE if next(coin) else TWO).invoke(NumberInput(x=1)).n

    recorded = record(random, None)

    with pytest.raises(ReplayMismatch):
        again(random, None, recorded)


def test_a_clock_in_an_input_is_caught():
    clock = count()

    def timed(_: Any) -> Any:
        return ONE.invoke(NumberInput(x=next(clock))).n

    recorded = record(timed, None)

    with pytest.raises(ReplayMismatch, match="other inputs"):
        again(timed, None, recorded)


def test_an_answer_of_other_results_is_caught():
    order = iter([("n", "y"), ("y", "n")])

    def choosing(_: Any) -> Any:
        found = ONE.invoke(NumberInput(x=1))
        return [getattr(found, name) for name in next(order)]

    recorded = record(choosing, None)

    with pytest.raises(ReplayMismatch, match="replay returned other results than the record has"):
        again(choosing, None, recorded)


def test_a_mismatch_that_is_swallowed_is_one_all_the_same():
    coin = iter([True, False])

    def careless(_: Any) -> Any:
        try:
            return (ONE if next(coin) else TWO).invoke(NumberInput(x=1)).n
        except GraphError:
            return None

    recorded = record(careless, None)

    with pytest.raises(ReplayMismatch, match="call 0 was number when recorded"):
        again(careless, None, recorded)


def test_a_pin_does_not_matter_on_replay():
    pins = iter(["apart", "together"])

    def pinning(_: Any) -> Any:
        with pinned(next(pins)):
            return ONE.invoke(NumberInput(x=1)).n

    recorded = record(pinning, None)

    assert again(pinning, None, recorded).origin == (0, "n")


# Reading


async def test_a_stream_is_consumed_once():
    def spell(_: Any) -> Any:
        return SPELL.invoke(WordsInput(text="ab")).letters

    recorded = record(spell, None)
    letters = replay(spell, None, recorded, {(0, "letters"): Kept({"value": "a"}, {"value": "b"})})

    assert [each async for each in letters] == ["a", "b"]
    with pytest.raises(StreamConsumed, match="was read already. A stream can be read once: keep its parts"):
        await letters
    with pytest.raises(StreamConsumed):
        letters.__aiter__()


@pytest.mark.parametrize("first", ["itself", "a transform"])
async def test_a_stream_and_its_transforms_are_one_stream(first: str):
    def spell(_: Any) -> Any:
        letters = SPELL.invoke(WordsInput(text="ab")).letters
        return [letters, letters.transform(str.upper)]

    recorded = record(spell, None)
    letters, loud = replay(spell, None, recorded, {(0, "letters"): Kept({"value": "a"}, {"value": "b"})})

    assert await (letters if first == "itself" else loud) == ("ab" if first == "itself" else "AB")
    with pytest.raises(StreamConsumed):
        await (loud if first == "itself" else letters)


async def test_transforms_follow_each_other():
    def spell(_: Any) -> Any:
        return SPELL.invoke(WordsInput(text="ab")).letters.transform(str.upper).transform(lambda part: part + "!")

    recorded = record(spell, None)
    loud = replay(spell, None, recorded, {(0, "letters"): Kept({"value": "a"}, {"value": "b"})})

    assert recorded.outputs == ((0, "letters"),)
    assert [each async for each in loud] == ["A!", "B!"]


async def test_awaiting_twice_gives_the_same_value():
    recorded = record(only_one, None)
    n = again(only_one, None, recorded)

    assert await n is await n


def test_a_transformed_stream_stays_with_its_reader():
    def invoke(_: Any) -> Any:
        found = ONE.invoke(NumberInput(x=1))
        made = FoldInput.model_construct(parts=found.parts.transform(str), start=0)
        return FOLD.invoke(made).n

    with pytest.raises(PlaceholderError, match="is transformed where it is read: return it, or await it"):
        record(invoke, None)
