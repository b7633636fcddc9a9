"""A value that tasks exchange: small JSON, and its tensor."""

from typing import Any, NamedTuple

import numpy as np

#: In the first chunk of a stream of rows that starts again: the number of its first row.
RESUMED_AT = "resumed_at"


class Item(NamedTuple):
    """One value, or one chunk of a stream.

    ``data`` is small JSON. ``array`` is its tensor: a read-only numpy view of the arena, without a copy and valid until
    the job ends. If producer and consumer run in one process, it is the producer's own array.
    """

    data: dict[str, Any]
    array: np.ndarray | None = None


class JoinedText(Item):
    """A chunk of text, joined from pieces with ``cuts`` characters each."""

    cuts: tuple[int, ...]

    def __new__(cls, data: dict[str, Any], cuts: tuple[int, ...]) -> "JoinedText":
        text = super().__new__(cls, data)
        text.cuts = cuts
        return text
