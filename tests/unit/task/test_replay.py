"""Replay: the answer with its results, and every way in which it may leave the record."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from omnibus.errors import GraphError, PlaceholderError, ReplayMismatch, StreamConsumed
from omnibus.task import Segment, pinned, record, replay
from omnibus.tensors.handle import Item
from tests.unit.task.tasks import ADD, FOLD, ONE, SPELL, TWO, AddInput, FoldInput, Number, NumberInput, WordsInput


class StoredSource:
    """A source with all its items available."""

    def __init__(self, *items: dict[str, Any]) -> None:
        self.items = [Item(data) for data in items]

    async def next_items(self) -> list[Item]:
        items, self.items = self.items, []
        return items


def make_sources(recording: Segment) -> dict[tuple[int, str], StoredSource]:
    return {origin: StoredSource({"value": index}) for index, origin in enumerate(recording.outputs)}


def replay_graph(invoke: Callable[[Any], Any], request: Any, recording: Segment) -> Any:
    return replay(invoke, request, recording, make_sources(recording))


def add_pair(x: Any) -> Any:
    number = ONE.invoke(NumberInput(x=x))
    return [number.n, ADD.invoke(AddInput(items=[number.y], more=number.n)).n]


async def test_replay_returns_the_answer_with_its_results():
    recording = record(add_pair, 1)

    one, total = replay_graph(add_pair, 1, recording)

    assert (await one, await total) == (0, 1)


def test_a_record_may_be_replayed_again():
    recording = record(add_pair, 1)

    assert [[each.origin for each in replay_graph(add_pair, 1, recording)] for _ in range(2)] == [
        [(0, "n"), (1, "n")]
    ] * 2


async def test_what_was_not_returned_cannot_be_read():
    results: list[Any] = []

    def keep_result(x: Any) -> Any:
        number = ONE.invoke(NumberInput(x=x))
        results.append(number.y)
        return number.n

    replay_graph(keep_result, 1, record(keep_result, 1))

    with pytest.raises(PlaceholderError, match="<tensor 'y' of number"):
        await results[-1]


def one_then_two(_: Any) -> Any:
    ONE.invoke(NumberInput(x=1))
    return TWO.invoke(NumberInput(x=1)).n


def two_then_one(_: Any) -> Any:
    TWO.invoke(NumberInput(x=1))
    return ONE.invoke(NumberInput(x=1)).n


def only_one(_: Any) -> Any:
    return ONE.invoke(NumberInput(x=1)).n


def count_request(x: Any) -> Any:
    return ONE.invoke(NumberInput(x=len(x), about=x)).n


MISMATCHES: dict[str, tuple[Any, Any, Any, Any, str]] = {
    "another order": (one_then_two, two_then_one, 0, 0, "call 0 was number when recorded and is number-scale_2 on replay"),
    "more calls": (only_one, one_then_two, 0, 0, "call 1 of number-scale_2 is not in the record"),
    "fewer calls": (one_then_two, only_one, 0, 0, "call 0 was number .*|made 1 calls, the record has 2"),
    "other inputs": (add_pair, add_pair, 1, 2, "call 0 of number got other inputs on replay: x"),
    "an input less": (count_request, count_request, {"a": 1, "b": 2}, {"a": 1}, "call 0 of number got other inputs on replay: about, x"),
    "no call": (only_one, lambda _: None, 0, 0, "made 0 calls, the record has 1"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "first_request", "now", "message"), MISMATCHES.values(), ids=MISMATCHES.keys()
)
def test_a_replay_that_leaves_the_record_is_refused(
    before: Any, after: Any, first_request: Any, now: Any, message: str
):
    recording = record(before, first_request)

    with pytest.raises(ReplayMismatch, match=message):
        replay_graph(after, now, recording)


def test_swapped_inputs_of_one_task_are_refused():
    order = iter([(1, 2), (2, 1)])

    def swap_inputs(_: Any) -> Any:
        first, second = next(order)
        return [ONE.invoke(NumberInput(x=first)).n, ONE.invoke(NumberInput(x=second)).n]

    recording = record(swap_inputs, None)

    with pytest.raises(ReplayMismatch, match="call 0 of number got other inputs on replay: x"):
        replay_graph(swap_inputs, None, recording)


def test_swapped_references_are_refused():
    order = iter([(0, 1), (1, 0)])

    def swap_references(_: Any) -> Any:
        numbers = [ONE.invoke(NumberInput(x=7)).y, ONE.invoke(NumberInput(x=7)).y]
        first, second = next(order)
        return ADD.invoke(AddInput(items=[numbers[first], numbers[second]])).n

    recording = record(swap_references, None)

    with pytest.raises(ReplayMismatch, match="call 2 of add got other inputs on replay: items"):
        replay_graph(swap_references, None, recording)


def test_another_task_of_the_same_class_is_refused():
    recording = record(only_one, None)

    with pytest.raises(ReplayMismatch, match="call 0 was number when recorded and is number-scale_3"):
        replay_graph(lambda _: Number(scale=3).invoke(NumberInput(x=1)).n, None, recording)


def test_a_random_branch_is_caught():
    coin = iter([True, False])

    def branch_randomly(_: Any) -> Any:
        return (ONE if next(coin) else TWO).invoke(NumberInput(x=1)).n

    recording = record(branch_randomly, None)

    with pytest.raises(ReplayMismatch):
        replay_graph(branch_randomly, None, recording)


def test_a_clock_in_an_input_is_caught():
    clock = count()

    def read_clock(_: Any) -> Any:
        return ONE.invoke(NumberInput(x=next(clock))).n

    recording = record(read_clock, None)

    with pytest.raises(ReplayMismatch, match="other inputs"):
        replay_graph(read_clock, None, recording)


def test_an_answer_of_other_results_is_caught():
    order = iter([("n", "y"), ("y", "n")])

    def choose_outputs(_: Any) -> Any:
        number = ONE.invoke(NumberInput(x=1))
        return [getattr(number, name) for name in next(order)]

    recording = record(choose_outputs, None)

    with pytest.raises(ReplayMismatch, match="replay returned other results than the record has"):
        replay_graph(choose_outputs, None, recording)


def test_a_mismatch_that_is_swallowed_is_one_all_the_same():
    coin = iter([True, False])

    def swallow_mismatch(_: Any) -> Any:
        try:
            return (ONE if next(coin) else TWO).invoke(NumberInput(x=1)).n
        except GraphError:
            return None

    recording = record(swallow_mismatch, None)

    with pytest.raises(ReplayMismatch, match="call 0 was number when recorded"):
        replay_graph(swallow_mismatch, None, recording)


def test_a_pin_does_not_matter_on_replay():
    pins = iter(["apart", "together"])

    def pin_call(_: Any) -> Any:
        with pinned(next(pins)):
            return ONE.invoke(NumberInput(x=1)).n

    recording = record(pin_call, None)

    assert replay_graph(pin_call, None, recording).origin == (0, "n")


# Reading


async def test_a_stream_is_consumed_once():
    def spell_letters(_: Any) -> Any:
        return SPELL.invoke(WordsInput(text="ab")).letters

    recording = record(spell_letters, None)
    letters = replay(spell_letters, None, recording, {(0, "letters"): StoredSource({"value": "a"}, {"value": "b"})})

    assert [each async for each in letters] == ["a", "b"]
    with pytest.raises(StreamConsumed, match="was read already. A stream can be read once: keep its parts"):
        await letters
    with pytest.raises(StreamConsumed):
        letters.__aiter__()


@pytest.mark.parametrize("first", ["itself", "a transform"])
async def test_a_stream_and_its_transforms_are_one_stream(first: str):
    def spell_both(_: Any) -> Any:
        letters = SPELL.invoke(WordsInput(text="ab")).letters
        return [letters, letters.transform(str.upper)]

    recording = record(spell_both, None)
    letters, loud = replay(spell_both, None, recording, {(0, "letters"): StoredSource({"value": "a"}, {"value": "b"})})

    assert await (letters if first == "itself" else loud) == ("ab" if first == "itself" else "AB")
    with pytest.raises(StreamConsumed):
        await (loud if first == "itself" else letters)


async def test_transforms_follow_each_other():
    def spell_transformed(_: Any) -> Any:
        return SPELL.invoke(WordsInput(text="ab")).letters.transform(str.upper).transform(lambda part: part + "!")

    recording = record(spell_transformed, None)
    loud = replay(spell_transformed, None, recording, {(0, "letters"): StoredSource({"value": "a"}, {"value": "b"})})

    assert recording.outputs == ((0, "letters"),)
    assert [each async for each in loud] == ["A!", "B!"]


async def test_awaiting_twice_gives_the_same_value():
    recording = record(only_one, None)
    n = replay_graph(only_one, None, recording)

    assert await n is await n


def test_a_transformed_stream_stays_with_its_reader():
    def invoke(_: Any) -> Any:
        number = ONE.invoke(NumberInput(x=1))
        fold_input = FoldInput.model_construct(parts=number.parts.transform(str), start=0)
        return FOLD.invoke(fold_input).n

    with pytest.raises(PlaceholderError, match="is transformed where it is read: return it, or await it"):
        record(invoke, None)
