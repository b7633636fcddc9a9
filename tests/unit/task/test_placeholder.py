"""Placeholders of future values reject inspection, with advice."""

import copy
import math
import operator
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from omnibus.errors import GraphError, PlaceholderError
from omnibus.task import Result, record
from tests.unit.task.tasks import ONE, SPELL, NumberInput, WordsInput

LOOKS: dict[str, Callable[[Any], Any]] = {
    "bool": bool,
    "if": lambda value: 1 if value else 2,
    "not": operator.not_,
    "and": lambda value: value and 1,
    "len": len,
    "str": str,
    "format": lambda value: f"{value}",
    "format with a width": lambda value: f"{value:>10}",
    "percent": lambda value: "%s" % value,  # noqa: UP031
    "repr": repr,
    "format of the repr": lambda value: f"{value!r}",
    "format of a list": lambda value: f"{[value]}",
    "iter": iter,
    "unpack": lambda value: [*value],
    "loop": lambda value: [each for each in value],  # noqa: C416
    "==": lambda value: value == "yes",
    "== on the right": lambda value: value == "yes",
    "!=": lambda value: value != "yes",
    "<": lambda value: value < 1,
    ">=": lambda value: value >= 1,
    "1 <": lambda value: 1 < value,  # noqa: SIM300
    "+": lambda value: value + "!",
    "+ on the right": lambda value: "!" + value,
    "+=": lambda value: operator.iadd(value, 1),
    "-": lambda value: value - 1,
    "*": lambda value: value * 2,
    "* on the right": lambda value: 2 * value,
    "/": lambda value: value / 2,
    "//": lambda value: value // 2,
    "%": lambda value: value % 2,
    "**": lambda value: value**2,
    "@": lambda value: value @ value,
    "&": lambda value: value & 1,
    "| on the right": lambda value: 1 | value,
    "<<": lambda value: value << 1,
    ">> on the right": lambda value: 1 >> value,
    "divmod": lambda value: divmod(value, 2),
    "negative": operator.neg,
    "positive": operator.pos,
    "~": operator.invert,
    "abs": abs,
    "in": lambda value: "yes" in value,
    "in a list": lambda value: value in ["yes"],
    "[0]": lambda value: value[0],
    "slice": lambda value: value[:3],
    "[0] = 1": lambda value: operator.setitem(value, 0, 1),
    "as an index": lambda value: [1, 2][value],
    "range": range,
    "int": int,
    "float": float,
    "complex": complex,
    "bytes": bytes,
    "round": round,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
    "next": next,
    "reversed": reversed,
    "sorted": sorted,
    "max": lambda value: max(value, 1),
    "array": np.asarray,
    "sum of arrays": np.sum,
    "join": "".join,
    "call": lambda value: value(),
    "with": lambda value: value.__enter__(),
}


def record_look(look: Callable[[Any], Any]) -> None:
    def invoke(_: Any) -> Any:
        spelt = SPELL.invoke(WordsInput(text="ab"))
        look(spelt.letters)
        return spelt

    record(invoke, None)


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS.keys())
def test_looking_is_refused_with_advice(look: Callable[[Any], Any]):
    with pytest.raises(
        PlaceholderError, match="make `invoke` async and `await` it, or branch in the app's `serve`"
    ) as caught:
        record_look(look)

    assert "<stream 'letters' of spell (node 0)>" in str(caught.value)


def test_a_method_of_a_value_that_is_not_there_is_refused_with_advice():
    with pytest.raises(PlaceholderError, match="no 'upper' here: <stream 'letters' of spell .* has no value while"):
        record_look(lambda value: value.upper())


def test_joining_is_refused_with_advice():
    with pytest.raises(GraphError, match="expected str instance, Result found; a result has no value while"):
        record_look(lambda value: "".join([value]))


@pytest.mark.parametrize("swallow", [bool, len, lambda value: value == 1])
def test_a_look_that_is_swallowed_is_refused_all_the_same(swallow: Callable[[Any], Any]):
    def swallow_look(value: Any) -> None:
        with suppress(Exception):  # like a careless composite
            swallow(value)

    with pytest.raises(PlaceholderError, match="has no value while the graph is recorded"):
        record_look(swallow_look)


def test_the_outputs_of_a_call_cannot_be_shown_either():
    def invoke(_: Any) -> Any:
        number = ONE.invoke(NumberInput(x=1))
        return SPELL.invoke(WordsInput(text=f"say {number}"))

    with pytest.raises(PlaceholderError):
        record(invoke, None)


def test_it_may_be_passed_on_kept_copied_and_shown_to_people():
    results: list[Any] = []

    def invoke(_: Any) -> Any:
        letters = SPELL.invoke(WordsInput(text="ab")).letters
        holders = {letters: [letters]}
        results.extend([holders[letters][0], copy.copy(letters), copy.deepcopy([letters])[0]])
        return letters

    record(invoke, None)

    assert all(each is results[0] for each in results)
    assert repr(results[0]) == f"{results[0]!r}" == "<stream 'letters' of spell (node 0)>"
    assert (results[0].origin, results[0].kind, results[0].element) == ((0, "letters"), "stream", str)


@pytest.mark.parametrize("kind", ["tensor", "value"])
def test_only_a_stream_is_transformed_or_iterated(kind: str):
    result = Result("spell", (0, "count"), kind, int)

    with pytest.raises(PlaceholderError, match="is not a stream: await it and use its value"):
        result.transform(str)
    with pytest.raises(PlaceholderError, match="is not a stream: await it"):
        result.__aiter__()
