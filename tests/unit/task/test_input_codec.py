"""Literals: call inputs other than results, which must not become part of a graph."""

import enum
from collections import OrderedDict, UserDict
from dataclasses import dataclass, field
from datetime import date
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from pydantic import BaseModel, RootModel

from omnibus.errors import BadRequest, GraphError, PlaceholderError
from omnibus.graph import HANDLE
from omnibus.task import Result, record
from tests.unit.task.tasks import ECHO, ONE, Box, EchoInput, NumberInput


def record_echo(literal: Any) -> Any:
    """Return a literal as recorded."""
    return record(lambda _: ECHO.invoke(EchoInput.model_construct(what=literal)), None).nodes[0].inputs["what"]


class SoundRow(NamedTuple):
    text: Any
    sound: Any


@dataclass
class LiteralAnswer:
    text: Any
    more: list[Any] = field(default_factory=list)


class LiteralStruct(msgspec.Struct):
    text: Any


class Mode(enum.StrEnum):
    FAST = "fast"


@pytest.mark.parametrize(
    ("literal", "expected_json"),
    [
        ({"a": [1, (2.5, None)], "b": True}, {"a": [1, [2.5, None]], "b": True}),
        (Box(value=1, name="a"), {"value": 1, "name": "a"}),
        (RootModel[list[int]]([1, 2]), [1, 2]),
        (LiteralAnswer("a", [1]), {"text": "a", "more": [1]}),
        (OrderedDict(a=1), {"a": 1}),
        (MappingProxyType({"a": UserDict(b=1)}), {"a": {"b": 1}}),
        (SoundRow(1, 2), [1, 2]),
        (Mode.FAST, "fast"),
        (date(2030, 1, 2), "2030-01-02"),
        ([np.int64(3), np.float32(0.5), np.True_], [3, 0.5, True]),
        ({HANDLE: {"id": 1}, "sha256": "ab"}, {HANDLE: {"id": 1}, "sha256": "ab"}),
    ],
)  # fmt: skip
def test_a_literal_travels_as_json(literal: Any, expected_json: Any):
    assert record_echo(literal) == expected_json


def test_json_that_was_encoded_before_travels_as_it_is():
    raw = msgspec.Raw(b'{"a":1}')

    assert record_echo(raw) is raw


class Smuggler(BaseModel):
    model_config = {"extra": "allow"}


REFERENCE = {"$ref": [0, "y"]}


def test_references_of_json_schemas_are_literals():
    schema = {"items": {"$ref": "#/$defs/Node"}, "$defs": {"Node": {"$ref": "#", "title": "x"}}}

    assert record_echo(schema) == schema


@pytest.mark.parametrize(
    "literal",
    [
        REFERENCE,
        {"$from": [0, 0, "y"]},
        {"$ref": 1, "more": 2},
        [{"deep": ({"down": [REFERENCE]},)}],
        OrderedDict(REFERENCE),
        UserDict(REFERENCE),
        Smuggler(**REFERENCE),
        LiteralAnswer(REFERENCE),
        LiteralStruct(REFERENCE),
        RootModel[dict[str, Any]](REFERENCE),
    ],
)
def test_a_request_cannot_smuggle_references_into_a_graph(literal: Any):
    with pytest.raises(
        BadRequest, match=r"cannot contain the keys '\$ref' and '\$from': they mark results of other calls"
    ):
        record_echo(literal)


@pytest.mark.parametrize(
    ("literal", "reason"),
    [
        (float("nan"), "cannot be nan: JSON only has finite numbers"),
        ([float("-inf")], "cannot be -inf"),
        (np.ones(2), "cannot be a literal ndarray: pass the result that it comes from"),
        (b"bytes", "cannot be a literal bytes"),
    ],
)
def test_a_literal_that_json_has_not_is_refused(literal: Any, reason: str):
    with pytest.raises(BadRequest, match=reason):
        record_echo(literal)


def test_a_key_that_json_has_not_is_refused():
    with pytest.raises(BadRequest, match="an input of echo cannot be JSON .*: keys of dicts must be text"):
        record_echo({3: "three"})


def test_a_literal_of_a_strange_type_is_refused_with_its_name():
    with pytest.raises(GraphError, match="TypeError: Encoding objects of type .*object.* is unsupported"):
        record_echo(object())


def test_handles_do_not_change_digests_but_content_does():
    def digest_at(offset: int, content: str) -> str:
        media = {HANDLE: {"offset": offset}, "sha256": content}
        return record(lambda _: ECHO.invoke(EchoInput(what=media)), None).nodes[0].digest

    assert digest_at(1, "aa") == digest_at(2, "aa")
    assert digest_at(1, "aa") != digest_at(1, "bb")


def test_a_result_of_nobody_is_refused():
    stray = Result("number", (0, "n"), "value", int)

    with pytest.raises(PlaceholderError, match="<value 'n' of number .* belongs to another graph: await it first"):
        record(lambda _: ONE.invoke(NumberInput(x=stray)), None)
