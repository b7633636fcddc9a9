"""A digest of what a stream said, however it was cut into chunks: so that a replay can be compared."""

import hashlib
from typing import Any

import msgspec

from omnibus.tensors.item import Item

_encode = msgspec.json.Encoder(order="sorted").encode


class Fingerprint:
    """Text and lists are joined by their key, arrays one after the other; other values count chunk by chunk."""

    def __init__(self) -> None:
        self._grown: dict[str, Any] = {}
        self._chunks: list[dict[str, Any]] = []
        self._arrays = hashlib.sha256()
        self._nbytes = 0

    def feed(self, item: Item) -> None:
        if item.array is not None:
            body = item.array.tobytes()
            self._arrays.update(body)
            self._nbytes += len(body)
            return
        rest: dict[str, Any] = {}
        for key, value in item.data.items():
            if isinstance(value, str):
                self._grown.setdefault(key, hashlib.sha256()).update(value.encode())
            elif isinstance(value, list):
                self._grown.setdefault(key, []).extend(value)
            else:
                rest[key] = value
        if rest:
            self._chunks.append(rest)

    def hex(self) -> str:
        """64 hex digits; of nothing, the empty string."""
        if not (self._grown or self._chunks or self._nbytes):
            return ""
        grown = {key: value if isinstance(value, list) else value.hexdigest() for key, value in self._grown.items()}
        return hashlib.sha256(_encode([grown, self._chunks, self._arrays.hexdigest()])).hexdigest()
