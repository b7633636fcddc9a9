"""Type checks of results as inputs of other tasks, with errors."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from omnibus.errors import BadRequest, GraphError
from omnibus.graph import make_ref
from omnibus.task import OnDemand, Stream, TaskInput, TaskOutput, Tensor, UnitTask, record
from tests.unit.task.tasks import (
    ADD,
    ECHO,
    FOLD,
    ONE,
    SPELL,
    AddInput,
    Box,
    EchoInput,
    FoldInput,
    NumberInput,
    NumberOutput,
    WordsInput,
)


class Loose(TaskInput):
    anything: Any = None
    several: list[Any] = []
    named: dict[str, Any] = {}
    pictures: dict[str, Tensor] = {}
    either: Tensor | str = ""
    bare: Stream | None = None


class Take(UnitTask[Loose, NumberOutput]):
    pass


def record_inputs(draw: Callable[[Any, Any], Any]) -> dict[str, Any]:
    """Return the inputs of the last call of ``draw``. It receives outputs of a number and a spelling."""

    def invoke(_: Any) -> Any:
        return draw(ONE.invoke(NumberInput(x=1)), SPELL.invoke(WordsInput(text="a")))

    return record(invoke, None).nodes[-1].inputs


def test_a_field_takes_a_result_of_its_kind():
    inputs = record_inputs(
        lambda number, spelt: Take().invoke(
            Loose(
                anything=number.y,
                several=[number.n, spelt.count, 3],
                named={"deep": {"down": number.n}},
                pictures={"a": number.y},
                either=number.y,
                bare=spelt.letters,
            )
        )
    )

    y, n = make_ref(0, "y"), make_ref(0, "n")
    assert inputs == {
        "anything": y, "several": [n, make_ref(1, "count"), 3], "named": {"deep": {"down": n}}, "pictures": {"a": y},
        "either": y, "bare": make_ref(1, "letters"),
    }  # fmt: skip


def test_a_plain_field_takes_a_value_of_another_task():
    assert record_inputs(lambda number, _: ADD.invoke(AddInput(more=number.n)))["more"] == make_ref(0, "n")
    assert record_inputs(lambda number, _: ECHO.invoke(EchoInput(box=number.n)))["box"] == make_ref(0, "n")


MISFITS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "a stream for a value": (
        lambda number, _: NumberInput(x=number.parts),
        r"NumberInput.x: .*a plain value is needed here, not <stream 'parts' of number \(node 0\)>: annotate the field "
        r"`Stream\[int\]`, or await the result",
    ),
    "a tensor for a value": (lambda number, _: NumberInput(x=number.y), "annotate the field `Tensor`, or await"),
    "a tensor in a text": (lambda number, _: WordsInput(text=number.y), "annotate the field `Tensor`"),
    "a stream for anything": (lambda number, _: Loose(anything=number.parts), "annotate the field `Stream"),
    "a value for a tensor": (
        lambda number, _: AddInput(one=number.n),
        r"a tensor output of another task is needed here, not <value 'n' of number",
    ),
    "a stream among tensors": (lambda number, _: AddInput(items=[number.parts]), "AddInput.items.0: .*a tensor output"),
    "an array for a tensor": (
        lambda number, _: AddInput(one=np.zeros(2)),
        "not a value of type ndarray: pass the result itself, unread",
    ),
    "a value for a stream": (lambda number, _: FoldInput(parts=number.n), "a stream output of another task is needed"),
    "a list for a stream": (lambda number, _: FoldInput(parts=[1, 2]), "not a value of type list: pass the result itself"),
    "a stream of other parts": (
        lambda _, spelt: FoldInput(parts=spelt.letters),
        "a stream of int is needed here, and <stream 'letters' of spell .*> is one of str: put a task between them",
    ),
    "a stream that is transformed": (
        lambda number, _: FoldInput(parts=number.parts.transform(str)),
        "is transformed where it is read: pass the stream itself, or await it",
    ),
    "a stream in a list": (
        lambda number, _: Take().invoke(Loose(several=[number.parts])),
        "a stream needs its own field, annotated `Stream`",
    ),
    "a stream in a dict": (
        lambda number, _: Take().invoke(Loose(named={"a": [number.parts]})),
        "a stream needs its own field",
    ),
    "a value among numbers": (
        lambda number, _: Numbers(numbers=[number.n]),
        "Numbers.numbers: .*a result needs its own field, or a list or dict annotated with `Any`",
    ),
    "a field that there is not": (lambda number, _: NumberInput(x=1, hue=number.n), "NumberInput.hue: Extra inputs"),
    "a text for a number": (lambda number, _: NumberInput(x="many"), "NumberInput.x: Input should be a valid integer"),
}  # fmt: skip


class Numbers(TaskInput):
    numbers: list[int] = []


@pytest.mark.parametrize(("draw", "message"), MISFITS.values(), ids=MISFITS.keys())
def test_what_does_not_fit_is_refused_with_advice(draw: Callable[[Any, Any], Any], message: str):
    with pytest.raises(GraphError, match=message):
        record_inputs(draw)


def test_the_same_stream_is_not_given_to_one_call_twice():
    with pytest.raises(GraphError, match="is given to two inputs of one call of fold: it is read once"):
        record_inputs(lambda number, _: FOLD.invoke(FoldInput(parts=number.parts, other=number.parts)))


def test_inputs_of_another_task_are_refused():
    with pytest.raises(BadRequest, match="spell takes WordsInput, not NumberInput"):
        record_inputs(lambda *_: SPELL.invoke(NumberInput(x=1)))


def test_a_none_that_says_something_is_told():
    class Voiced(TaskInput):
        voice: str | None = "low"
        pitch: int | None = None

    class Sing(UnitTask[Voiced, NumberOutput]):
        pass

    def invoke_sing(inputs: Any) -> Any:
        return Sing().invoke(inputs)

    assert record(invoke_sing, Voiced(voice=None)).nodes[0].inputs == {"voice": None}
    assert record(invoke_sing, Voiced(pitch=3)).nodes[0].inputs == {"voice": "low", "pitch": 3}


# Outputs


def test_an_output_says_what_it_is():
    class Many(TaskOutput):
        picture: Tensor
        maybe: Tensor | None = None
        steps: OnDemand[Stream[Box]]
        any: Stream
        title: str

    assert Many.fields == {
        "picture": ("tensor", Tensor, False),
        "maybe": ("tensor", Tensor, False),
        "steps": ("stream", Box, True),
        "any": ("stream", Any, False),
        "title": ("value", str, False),
    }


@pytest.mark.parametrize("kind", [list[Tensor], dict[str, Tensor], list[Stream[int]], Tensor | str])
def test_an_output_that_cannot_travel_is_refused_where_it_is_declared(kind: Any):
    with pytest.raises(TypeError, match=r"Wrong.out: an output is one `Tensor`, one `Stream\[...\]`, or plain values"):
        type("Wrong", (TaskOutput,), {"__annotations__": {"out": kind}})


def test_an_input_of_several_streams_is_refused_where_it_is_declared():
    with pytest.raises(TypeError, match="Wrong.given: a stream needs its own field"):
        type("Wrong", (TaskInput,), {"__annotations__": {"given": list[Stream[int]]}})


def test_a_task_that_runs_itself_fills_its_outputs():
    output = NumberOutput(y=np.ones(2), n=3, parts=[1, 2], late=[1.0])

    assert (output.n, output.parts, output.y.tolist()) == (3, [1, 2], [1.0, 1.0])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"y": "text"}, "an array is needed here, not a value of type str"),
        ({"parts": 3}, "a list or an async iterator is needed here, not a value of type int"),
        ({"n": "many"}, "valid integer"),
        ({"y": None}, "a tensor output of another task is needed here"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(wrong: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        NumberOutput(**{"y": np.ones(2), "n": 3, "parts": [], "late": np.ones(1), **wrong})


def test_a_composite_may_give_outputs_of_several_tasks_as_one():
    def invoke(_: Any) -> Any:
        one, two = ONE.invoke(NumberInput(x=1)), ONE.invoke(NumberInput(x=2))
        return NumberOutput(y=one.y, n=two.n, parts=two.parts, late=one.late)

    assert record(invoke, None).outputs == ((0, "y"), (1, "n"), (1, "parts"), (0, "late"))


def test_an_output_of_another_kind_is_no_output():
    def invoke(_: Any) -> Any:
        one = ONE.invoke(NumberInput(x=1))
        return NumberOutput(y=one.n, n=one.n, parts=one.parts, late=one.late)

    with pytest.raises(GraphError, match="NumberOutput.y: .*an array is needed here, not <value 'n' of number"):
        record(invoke, None)


def test_an_output_that_there_is_not_is_named_with_those_there_are():
    with pytest.raises(GraphError, match="NumberOutput has no output 'colour'; it has y, n, parts, late"):
        record(lambda _: ONE.invoke(NumberInput(x=1)).colour, None)
