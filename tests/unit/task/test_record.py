"""Recording: the graph of ``invoke``, and invalid inputs."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from pydantic import BaseModel

from omnibus.errors import BadRequest, GraphError, PlaceholderError, TooLarge
from omnibus.graph import make_ref
from omnibus.task import CompositeTask, pinned, record
from tests.unit.task.tasks import ADD, FOLD, ONE, TWO, AddInput, FoldInput, Number, NumberInput


def fold_number(x: int) -> Any:
    number = ONE.invoke(NumberInput(x=x))
    return FOLD.invoke(FoldInput(parts=number.parts, start=number.n)).sums


def test_calls_become_nodes_in_their_order():
    recording = record(fold_number, 3)

    one, fold = recording.nodes
    assert (one.task, one.component, one.model) == ("number", "number", "")
    assert one.inputs == {"x": 3, "text": "", "many": [], "about": {}}
    assert fold.inputs == {"parts": make_ref(0, "parts"), "start": make_ref(0, "n"), "other": None}
    assert fold.uses == ((0, "parts"), (0, "n"))
    assert recording.outputs == ((1, "sums"),)
    assert (recording.work, recording.pins, recording.choices) == ((1, 1), ("", ""), ())


def test_a_task_is_recorded_with_its_model_and_its_expected_work():
    recording = record(lambda _: Number(model="m", component="c").invoke(NumberInput(x=1), work=7), None)

    assert (recording.nodes[0].task, recording.nodes[0].model, recording.nodes[0].component) == ("number-m-c", "m", "c")
    assert recording.work == (7,)


def test_a_node_lists_what_it_uses_once():
    def use_twice(_: Any) -> Any:
        number = ONE.invoke(NumberInput(x=1))
        return ADD.invoke(AddInput(items=[number.y, number.y], one=number.y, numbers=[{"deep": number.n}]))

    assert record(use_twice, None).nodes[1].uses == ((0, "y"), (0, "n"))


def test_inputs_that_are_not_set_are_left_out():
    assert "one" not in record(lambda _: ADD.invoke(AddInput(one=None)), None).nodes[0].inputs


def test_a_graph_without_end_is_refused_at_its_limit():
    def invoke(_: Any) -> Any:
        while True:
            ONE.invoke(NumberInput(x=1))

    with pytest.raises(TooLarge, match="256 segments of 512 calls each: loop less, or split the request"):
        record(invoke, None)


def test_equal_calls_are_counted():
    def call_repeatedly(_: Any) -> Any:
        return [(ONE if index != 2 else TWO).invoke(NumberInput(x=1)).n for index in range(4)]

    assert [node.salt for node in record(call_repeatedly, None).nodes] == [0, 1, 0, 2]


# Outputs


class ResultRow(NamedTuple):
    text: Any
    sound: Any


@dataclass
class ResultAnswer:
    text: Any
    more: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Slotted:
    text: Any


class ResultStruct(msgspec.Struct):
    text: Any


class ResultModel(BaseModel):
    model_config = {"extra": "allow"}

    text: Any


class Cycle:
    def __init__(self, result: Any) -> None:
        self.again = [self, {"me": self}]
        self.n = result


@pytest.mark.parametrize(
    ("wrap", "outputs"),
    [
        (lambda found: found.n, ((0, "n"),)),
        (lambda found: [found.y, found.n, found.y], ((0, "y"), (0, "n"))),
        (lambda found: {"a": (found.n, "literal")}, ((0, "n"),)),
        (lambda found: {found.n}, ((0, "n"),)),
        (lambda found: ResultRow(found.n, None), ((0, "n"),)),
        (lambda found: ResultAnswer(found.n, [found.y, found.n]), ((0, "n"), (0, "y"))),
        (lambda found: Slotted(found.n), ((0, "n"),)),
        (lambda found: ResultStruct(found.n), ((0, "n"),)),
        (lambda found: ResultModel(text=found.n, other=found.y), ((0, "n"), (0, "y"))),
        (lambda found: Cycle(found.n), ((0, "n"),)),
        (lambda found: found.parts.transform(str), ((0, "parts"),)),
        (lambda found: found, ((0, "y"), (0, "n"), (0, "parts"), (0, "late"))),
        (lambda found: [None, 1, b"x", np.ones(1), enum, int], ()),
    ],
    ids=["bare", "list", "dict", "set", "tuple", "dataclass", "slots", "struct", "model", "cycle", "transform", "all", "none"],
)  # fmt: skip
def test_returned_results_are_the_outputs(wrap: Callable[[Any], Any], outputs: tuple[tuple[int, str], ...]):
    assert record(lambda _: wrap(ONE.invoke(NumberInput(x=1))), None).outputs == outputs


def test_a_task_whose_outputs_nobody_uses_is_still_run():
    def ignore_output(_: Any) -> Any:
        ONE.invoke(NumberInput(x=1))
        return TWO.invoke(NumberInput(x=1)).n

    recording = record(ignore_output, None)

    assert [node.task for node in recording.nodes] == ["number", "number-scale_2"]
    assert recording.outputs == ((1, "n"),)


# Composites


class Both(CompositeTask):
    first: list[Number] = [ONE, TWO]
    second: dict[str, Any] = {"add": ADD}

    def invoke(self, x: int) -> Any:
        return self.second["add"].invoke(AddInput(items=[each.invoke(NumberInput(x=x)).y for each in self.first]))


class Nest(CompositeTask):
    inner: dict[str, Both] = {"a": Both(), "b": Both()}

    def invoke(self, xs: list[int]) -> Any:
        return [composite.invoke(x).n for x in xs for composite in self.inner.values()]


def test_composites_nest_and_loop_over_their_request():
    recording = record(Nest().invoke, [5, 6])

    assert [node.task for node in recording.nodes] == ["number", "number-scale_2", "add"] * 4
    assert recording.nodes[11].inputs["items"] == [make_ref(9, "y"), make_ref(10, "y")]
    assert recording.outputs == ((2, "n"), (5, "n"), (8, "n"), (11, "n"))


def test_a_composite_that_calls_nothing_is_refused():
    with pytest.raises(GraphError, match="called no unit task, so there is nothing to run"):
        record(lambda request: request, 1)


def test_a_composite_without_invoke_says_so():
    class Empty(CompositeTask):
        pass

    with pytest.raises(BadRequest, match=r"Empty has no invoke\(self, request\): write one"):
        record(Empty().invoke, 1)


def test_a_composite_that_forgets_to_wait_says_so():
    class SlowComposite(CompositeTask):
        async def invoke(self, x: int) -> Any:
            return ONE.invoke(NumberInput(x=x)).n

    class Hasty(CompositeTask):
        inner: SlowComposite = SlowComposite()

        def invoke(self, x: int) -> Any:
            return self.inner.invoke(x)

    with pytest.raises(GraphError, match="Hasty.invoke returned a coroutine: make it `async def`, and `await`"):
        record(Hasty().invoke, 1)


def test_a_failure_of_invoke_names_its_composite():
    class Picky(CompositeTask):
        def invoke(self, request: dict[str, int]) -> Any:
            return ONE.invoke(NumberInput(x=request["y"]))

    with pytest.raises(GraphError, match="Picky.invoke failed while its graph was recorded .KeyError: 'y'"):
        record(Picky().invoke, {"x": 1})


def test_a_refusal_by_invoke_is_its_own():
    class Picky(CompositeTask):
        def invoke(self, x: int) -> Any:
            raise BadRequest(f"{x} is too much", param="x")

    with pytest.raises(BadRequest, match="7 is too much"):
        record(Picky().invoke, 7)


def test_nothing_is_called_outside_of_invoke():
    with pytest.raises(PlaceholderError, match="inside of a composite task's `invoke`, while it runs"):
        ONE.invoke(NumberInput(x=1))
    with pytest.raises(PlaceholderError, match="inside of a composite task's `invoke`"), pinned("apart"):
        pass


# Pins


def test_pins_hold_inside_and_the_innermost_counts():
    def invoke(_: Any) -> Any:
        with pinned("apart"):
            ONE.invoke(NumberInput(x=1))
            with pinned("path:E>L"):
                ONE.invoke(NumberInput(x=2))
            with pinned(""):
                ONE.invoke(NumberInput(x=3))
        return ONE.invoke(NumberInput(x=4)).n

    assert record(invoke, None).pins == ("apart", "path:E>L", "apart", "")


def test_a_pin_does_not_outlive_a_failure():
    def invoke(_: Any) -> Any:
        try:
            with pinned("apart"):
                raise ValueError
        except ValueError:
            return ONE.invoke(NumberInput(x=1)).n

    assert record(invoke, None).pins == ("",)
