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

    @property
    def cuts(self) -> tuple[int, ...]:
        """Characters of each piece that ``data["text"]`` was joined of on its way; empty for a single one."""
        return ()


class JoinedText(Item):
    """A chunk of text that was joined of pieces."""

    def __new__(cls, data: dict[str, Any], cuts: tuple[int, ...]) -> "JoinedText":
        made = super().__new__(cls, data)
        made._cuts = cuts
        return made

    _cuts: tuple[int, ...]

    @property
    def cuts(self) -> tuple[int, ...]:
        return self._cuts
