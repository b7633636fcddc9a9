"""A digest of what a stream said, however it was cut into chunks: so that a replay can be compared."""

import hashlib
from typing import Any

import msgspec
import numpy as np

from omnibus.tensors.item import Item

_encode = msgspec.json.Encoder(order="sorted").encode


class Fingerprint:
    """Text and lists are joined by their key, arrays one after the other; other values count chunk by chunk."""

    def __init__(self) -> None:
        self._texts: dict[str, Any] = {}
        self._lists: dict[str, list[Any]] = {}
        self._chunks: list[dict[str, Any]] = []
        self._arrays = hashlib.sha256()
        self._nbytes = 0

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
            elif isinstance(value, list):
                self._lists.setdefault(key, []).extend(value)
            else:
                rest[key] = value
        if rest:
            self._chunks.append(rest)

    def _add_array(self, array: np.ndarray) -> None:
        if not array.nbytes:
            return
        if not self._nbytes:  # rows may be cut otherwise next time, what a row is may not
            self._arrays.update(f"{array.dtype.str}{array.shape[1:]}".encode())
        self._arrays.update(array.tobytes())
        self._nbytes += array.nbytes

    def hexdigest(self) -> str:
        """64 hex digits; of nothing, the empty string."""
        if not (self._texts or self._lists or self._chunks or self._nbytes):
            return ""
        texts = {key: text.hexdigest() for key, text in self._texts.items()}
        return hashlib.sha256(_encode([texts, self._lists, self._chunks, self._arrays.hexdigest()])).hexdigest()
