"""Round trips from a task's outputs to a reader, without changes."""

from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from omnibus.errors import ProtocolError, StageFailed
from omnibus.task import Audio, TextChunk
from omnibus.task.result import Part, decode_part, decode_value, encode_item, join_parts, unwrap_value
from omnibus.tensors.handle import Item


class AnyBox(BaseModel):
    value: Any
    name: str = ""


class Alone(BaseModel):
    value: Any


class Plain(BaseModel):
    name: str


VALUES: list[tuple[Any, Any]] = [
    (str, "text"), (str, ""), (int, 3), (float, 0.5), (bool, False), (list[int], [1, 2]), (list, []), (int | None, None),
    (dict, {}), (dict, {"a": 1}), (dict, {"value": 1}), (dict, {"value": {"value": 1}}), (dict[str, Any], {"value": 1, "b": 2}),
    (Plain, Plain(name="a")), (AnyBox, AnyBox(value=1)), (AnyBox, AnyBox(value={"value": 2}, name="b")), (Alone, Alone(value=1)),
    (Alone, Alone(value={"value": 3})), (Alone, Alone(value={"a": 3})), (list[AnyBox], [AnyBox(value=1)]),
    (dict[str, Plain], {"a": Plain(name="b")}), (tuple[int, str], (1, "a")), (TextChunk, TextChunk(text="a", ids=[1])),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=str)
def test_a_typed_reader_sees_what_was_given(kind: Any, value: Any):
    assert decode_value(kind, [encode_item(value)], "x") == value


JSON: list[Any] = [
    "text", 3, None, True, [1, {"value": 2}], {}, {"a": 1}, {"value": 1}, {"value": {"value": 1}}, {"value": None, "b": 2},
    {"value": {"a": 1}}, [],
]  # fmt: skip


@pytest.mark.parametrize("value", JSON, ids=str)
def test_a_reader_of_anything_sees_what_was_given(value: Any):
    assert decode_part(Any, encode_item(value)) == value
    assert unwrap_value(encode_item(value).data) == value


def test_an_array_travels_as_it_is():
    array = np.arange(4)

    assert decode_part(Any, encode_item(array)) is array
    assert encode_item(array).data == {}


def test_a_model_may_hold_one_array():
    sound = Audio(rate=8000, array=np.ones(3, np.float32))

    item = encode_item(sound)

    assert item.data == {"rate": 8000}
    assert decode_part(Audio, item).array is sound.array
    assert decode_part(Any, item) is sound.array


@pytest.mark.parametrize("data", [{"value": 1}, {"value": {"a": 1}}, {"value": {"a": 1}, "name": "x"}])
def test_what_an_engine_wrote_as_it_is_is_read_as_it_is(data: dict[str, Any]):
    kind = AnyBox if "name" in data else Alone

    assert decode_part(kind, Item(data)) == kind(**data)
    assert decode_part(dict, Item(data)) == data


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        (int, {"value": "many"}, r"value \(Input should be a valid integer"),
        (Plain, {"nome": "a"}, r"name \(Field required"),
        (list[Plain], {"value": [{"name": "a"}, 3]}, r"1 \("),
    ],
)
def test_a_value_of_another_type_is_the_tasks_fault(kind: Any, data: dict[str, Any], reason: str):
    with pytest.raises(StageFailed, match=f"a task returned a value of another type than declared: {reason}"):
        decode_value(kind, [Item(data)], "x")


def test_a_value_that_never_came_is_an_error():
    with pytest.raises(ProtocolError, match="<value 'n'> ended without a value"):
        decode_value(int, [], "<value 'n'>")


class JoinedWord(Part):
    word: str

    @classmethod
    def join(cls, parts: Any) -> str:
        return "-".join(part.word for part in parts)


@pytest.mark.parametrize(
    ("kind", "parts", "expected_whole"),
    [
        (str, ["a", "b"], "ab"),
        (str, [], ""),
        (int, [1, 2], [1, 2]),
        (int, [], []),
        (JoinedWord, [JoinedWord(word="a"), JoinedWord(word="b")], "a-b"),
        (JoinedWord, [], ""),
        (Plain, [Plain(name="a")], [Plain(name="a")]),
        (TextChunk, [TextChunk(text="a"), TextChunk(text="b")], "ab"),
    ],
    ids=str,
)
def test_the_whole_of_a_stream_is_joined_by_the_type_of_its_parts(kind: Any, parts: list[Any], expected_whole: Any):
    assert join_parts(kind, parts, False) == expected_whole


def test_arrays_are_joined_where_their_rows_are_alike():
    rows = [np.ones((1, 2)), np.zeros((2, 2))]
    pictures = [np.ones((2, 2)), np.ones((2, 3))]

    assert join_parts(Any, rows, False).shape == (3, 2)
    assert join_parts(Any, pictures, False) is pictures


def test_what_was_transformed_is_joined_by_what_it_is():
    assert join_parts(JoinedWord, ["a", "b"], True) == "ab"
    assert join_parts(str, [1, 2], True) == [1, 2]
    assert join_parts(str, [], True) == []
