"""Digests of streams: independent of chunk boundaries, different for different streams."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnibus.tensors.handle import Item
from omnibus_gateway.dispatch.streams import Fingerprint


def compute_digest(*items: Item | dict[str, Any]) -> str:
    fingerprint = Fingerprint()
    for item in items:
        fingerprint.add_item(item if isinstance(item, Item) else Item(item))
    return fingerprint.hexdigest()


def make_rows(*values: Any, dtype: str = "float32") -> Item:
    return Item({}, np.array(values, dtype))


def test_of_nothing_there_is_no_digest():
    assert compute_digest() == compute_digest({}) == compute_digest(make_rows()) == ""


def test_a_digest_has_64_hex_digits():
    assert len(compute_digest({"text": "a"})) == 64


@settings(max_examples=100, deadline=None)
@given(st.text(), st.lists(st.integers()), st.lists(st.integers(-9, 9), min_size=1), st.data())
def test_where_a_stream_is_cut_does_not_matter(text: str, ids: list[int], numbers: list[int], data: st.DataObject):
    def cut_at_random(whole: Any) -> tuple[Any, Any]:
        at = data.draw(st.integers(0, len(whole)))
        return whole[:at], whole[at:]

    (before, after), (first, second), (up, down) = cut_at_random(text), cut_at_random(ids), cut_at_random(numbers)

    whole = compute_digest({"text": text, "ids": ids}, make_rows(*numbers))
    pieces = compute_digest(
        {"text": before, "ids": first}, make_rows(*up), {"text": after}, make_rows(*down), {"ids": second}
    )
    assert whole == pieces


@pytest.mark.parametrize(
    "other",
    [
        [{"text": "ab", "n": 1}],
        [{"text": "ab", "n": 2}, make_rows(1, 2)],
        [{"text": "ba", "n": 1}, make_rows(1, 2)],
        [{"word": "ab", "n": 1}, make_rows(1, 2)],
        [{"text": "ab", "n": 1}, make_rows(2, 1)],
        [{"text": "ab", "n": 1}, make_rows(1, 2, dtype="float64")],
        [{"text": "ab", "n": 1}, make_rows([1, 2])],
        [{"text": "ab", "n": 1}, {"n": 1}, make_rows(1, 2)],
        [{"text": ["a", "b"], "n": 1}, make_rows(1, 2)],
    ],
)
def test_another_stream_has_another_digest(other: list[Any]):
    assert compute_digest(*other) != compute_digest({"text": "ab", "n": 1}, make_rows(1, 2))


def test_other_values_count_chunk_by_chunk():
    assert compute_digest({"n": 1}, {"n": 2}) != compute_digest({"n": 2}, {"n": 1})
    assert compute_digest({"n": {"b": 1, "a": 2}}) == compute_digest({"n": {"a": 2, "b": 1}})


def test_a_key_may_hold_text_and_lists_in_turn():
    assert compute_digest({"value": "a"}, {"value": [1]}, {"value": "b"}, {"value": 3}) != compute_digest(
        {"value": "a"}, {"value": [1]}
    )
    assert compute_digest({"value": [1]}, {"value": "a"}) == compute_digest({"value": "a"}, {"value": [1]})
