"""A value that does not exist yet refuses to be looked at, and says what to do instead."""

import operator
from collections.abc import Callable
from typing import Any

import pytest

from omnibus.errors import PlaceholderError
from omnibus.task import Placeholder


@pytest.fixture
def later() -> Placeholder:
    return Placeholder(2, "text", "think-m-thinker", "stream")


LOOKS: dict[str, Callable[[Any], Any]] = {
    "bool": bool,
    "if": lambda value: 1 if value else 2,
    "not": operator.not_,
    "len": len,
    "str": str,
    "format": lambda value: f"{value}",
    "format with a width": lambda value: f"{value:>10}",
    "percent": lambda value: "%s" % value,  # noqa: UP031
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
    "-": lambda value: value - 1,
    "*": lambda value: value * 2,
    "* on the right": lambda value: 2 * value,
    "/": lambda value: value / 2,
    "negative": operator.neg,
    "in": lambda value: "yes" in value,
    "in a list": lambda value: value in ["yes"],
    "[0]": lambda value: value[0],
    "slice": lambda value: value[:3],
    "as an index": lambda value: [1, 2][value],
    "range": range,
    "int": int,
    "float": float,
    "round": round,
    "sorted": sorted,
    "join": "".join,
    "call": lambda value: value(),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS.keys())
def test_looking_is_refused_with_advice(later: Placeholder, look: Callable[[Any], Any]):
    with pytest.raises(PlaceholderError, match="take it out of `invoke`") as caught:
        look(later)

    assert "<stream 'text' of think-m-thinker (node 2)>" in str(caught.value)


def test_it_may_be_passed_on_kept_and_shown_to_people(later: Placeholder):
    kept = {later: [later]}

    assert kept[later][0] is later
    assert repr(later) == f"{later!r}" == "<stream 'text' of think-m-thinker (node 2)>"
    assert (later.node, later.output, later.kind) == (2, "text", "stream")
