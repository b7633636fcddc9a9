"""Digest of a stream's content, independent of its chunks, to compare replays."""

import hashlib
from typing import Any

import msgspec
import numpy as np

from omnibus.structured.calls import CALL
from omnibus.tensors.item import Item

#: Fields of the closing chunk of an answer.
_CLOSING = frozenset({"finish_reason", "usage"})
_encode = msgspec.json.Encoder(order="sorted").encode


class Fingerprint:
    """Digest that joins texts and lists by key, and arrays; other values count per chunk."""

    def __init__(self) -> None:
        self._texts: dict[str, Any] = {}
        self._lists: dict[str, list[Any]] = {}
        self._chunks: list[dict[str, Any]] = []
        self._arrays = hashlib.sha256()
        self._nbytes = 0
        #: Sizes of the content: characters of texts by key, tool calls, arrays, their rows, and the shape of a row.
        self.characters: dict[str, int] = {}
        self.calls = 0
        self.arrays = self.rows = 0
        self.row_shape: tuple[int, ...] = ()

    def add_item(self, item: Item) -> None:
        if item.array is not None:
            self._add_array(item.array)
            return
        rest: dict[str, Any] = {}
        for key, value in item.data.items():
            if isinstance(value, str | list) and not value:
                continue
            if isinstance(value, str):
                self._texts.setdefault(key, hashlib.sha256()).update(value.encode())
                self.characters[key] = self.characters.get(key, 0) + len(value)
                self.calls += value.count(CALL) if key == "calls" else 0
            elif isinstance(value, list):
                self._lists.setdefault(key, []).extend(value)
            else:
                rest[key] = value
        if rest:
            self._chunks.append(rest)

    def _add_array(self, array: np.ndarray) -> None:
        if not array.nbytes:
            return
        if not self._nbytes:  # a rerun may cut the rows differently, but not the shape of a row
            self._arrays.update(f"{array.dtype.str}{array.shape[1:]}".encode())
        self._arrays.update(array.tobytes())
        self._nbytes += array.nbytes
        self.arrays += 1
        self.rows += len(array) if array.ndim else 1
        self.row_shape = array.shape[1:]

    @property
    def lengths(self) -> dict[str, int]:
        """Numbers of elements of the lists, by key."""
        return {key: len(elements) for key, elements in self._lists.items()}

    @property
    def values(self) -> int:
        """Number of chunks with other values, such as numbers or objects."""
        return len(self._chunks)

    @property
    def has_content(self) -> bool:
        """True if anything but the closing chunk of an answer arrived."""
        content_keys = self._texts.keys() - _CLOSING or self._lists or self._nbytes
        return bool(content_keys or any(each.keys() - _CLOSING for each in self._chunks))

    def hexdigest(self, *, cached: bool = False) -> str:
        """Return 64 hex digits, or the empty string without content.

        Cached prompt tokens do not count: they depend on the run, not on its answer. With ``cached`` they count, as in
        records of earlier builds.
        """
        if not (self._texts or self._lists or self._chunks or self._nbytes):
            return ""
        texts = {key: text.hexdigest() for key, text in self._texts.items()}
        chunks = self._chunks if cached else [_without_cached(chunk) for chunk in self._chunks]
        return hashlib.sha256(_encode([texts, self._lists, chunks, self._arrays.hexdigest()])).hexdigest()


def _without_cached(chunk: dict[str, Any]) -> dict[str, Any]:
    usage = chunk.get("usage")
    if not isinstance(usage, dict) or "cached_tokens" not in usage:
        return chunk
    return {**chunk, "usage": {name: count for name, count in usage.items() if name != "cached_tokens"}}
