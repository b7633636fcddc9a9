"""Damaged inputs: bytes with some of them changed, and JSON documents with some of their values changed."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
#: Numbers at which a length, an index or a time goes wrong.
EDGES = [0, -1, 1, 2, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63)]
#: Any JSON at all.
JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.sampled_from(EDGES) | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=6,
)
#: Invalid or unusual JSON.
NO_JSON = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"{}",
    b"\x00\xff\xfe",
    b'"\xed\xa0\x80"',
    b'{"\xff":1}',
    b"[" * 5_000,
    b'{"a":' * 5_000,
    b"1" * 5_000,
    b'{"v":1}',
    b'{"v":1e999}',
    b'{"v":99,"msgs":[]}',
    b'{"v":1,"msgs":[' + b"[" * 5_000,
    b"\xef\xbb\xbf{}",
]

_PLACES = st.integers(0, 2**16 - 1)
_BYTES = st.one_of(
    st.binary(min_size=1, max_size=8),
    st.sampled_from(EDGES).map(lambda number: (number % 2**32).to_bytes(4, "little")),
    st.sampled_from(EDGES).map(lambda number: (number % 2**64).to_bytes(8, "big")),
)


def _replace_bytes(data: bytearray, at: int, more: bytes) -> None:
    data[at : at + len(more)] = more


def _insert_bytes(data: bytearray, at: int, more: bytes) -> None:
    data[at:at] = more


def _delete_bytes(data: bytearray, at: int, more: bytes) -> None:
    del data[at : at + len(more) ** 2]


def _cut_end(data: bytearray, at: int, _: bytes) -> None:
    del data[at:]


def _repeat_bytes(data: bytearray, at: int, more: bytes) -> None:
    data[at:at] = data[at : at + 16 * len(more)]


_EDITS: list[Callable[[bytearray, int, bytes], None]] = [
    _replace_bytes,
    _replace_bytes,
    _insert_bytes,
    _delete_bytes,
    _repeat_bytes,
    _cut_end,
]
_HEAD_BYTES = 128


@st.composite
def mutate_bytes(draw: st.DrawFn, seeds: Sequence[bytes], most: int = 6) -> bytes:
    """Apply up to ``most`` edits to one of ``seeds``.

    Half of them are near the beginning, where headers are.
    """
    data = bytearray(draw(st.sampled_from(seeds)))
    for edit, place, more, front in draw(
        st.lists(st.tuples(st.sampled_from(_EDITS), _PLACES, _BYTES, st.booleans()), max_size=most)
    ):
        reach = min(len(data), _HEAD_BYTES) if front else len(data)
        edit(data, place * reach >> 16, more)
    return bytes(data)


@st.composite
def spoil_document(draw: st.DrawFn, documents: Sequence[Any], most: int = 3) -> Any:
    """Change up to ``most`` values in one of the JSON ``documents``.

    Values at any depth are changed, removed or added.
    """
    document = json.loads(json.dumps(draw(st.sampled_from(documents))))
    for _ in range(draw(st.integers(0, most))):
        document = _spoil_value(draw, document)
    return document


def _spoil_value(draw: st.DrawFn, value: Any) -> Any:
    inside = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not inside or draw(st.integers(0, 4)) == 0:
        return draw(JUNK)
    key = draw(st.sampled_from(inside))
    choice = draw(st.integers(0, 9))
    if choice == 0:
        del value[key]
    elif choice == 1 and isinstance(value, dict):
        value[draw(_TEXT)] = draw(JUNK)
    elif choice == 1:
        value.append(value[key])
    else:
        value[key] = _spoil_value(draw, value[key])
    return value


def make_bodies(documents: Sequence[bytes], most: int = 3) -> st.SearchStrategy[bytes]:
    """Bodies near to JSON ``documents``: other values, other bytes, and no JSON at all."""
    json_documents = [json.loads(each) for each in documents]
    values = spoil_document(json_documents, most).map(lambda value: json.dumps(value).encode())
    return values | values | mutate_bytes(list(documents), most) | st.sampled_from(NO_JSON)
