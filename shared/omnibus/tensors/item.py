"""A value as it goes from task to task: small JSON, and the tensor that belongs to it."""

from typing import Any, NamedTuple

import numpy as np

#: In the data of the first chunk of a stream of rows that begins again: the row that it begins with.
RESUMED_AT = "resumed_at"


class Item(NamedTuple):
    """One value, or one chunk of a stream.

    ``data`` is small JSON. ``array`` is the tensor that belongs to it: a read-only numpy view of the
    arena (no copy; valid until the job ends), or the producer's own array when both run in one process.
    """

    data: dict[str, Any]
    array: np.ndarray | None = None


class JoinedText(Item):
    """A chunk of text that was joined on its way of pieces with ``cuts`` characters each."""

    cuts: tuple[int, ...]

    def __new__(cls, data: dict[str, Any], cuts: tuple[int, ...]) -> "JoinedText":
        made = super().__new__(cls, data)
        made.cuts = cuts
        return made
