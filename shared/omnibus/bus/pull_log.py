"""Bytes that a reader had pulled from other nodes, and how long it waited for them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from omnibus.bus.messages import PullCost
from omnibus.tensors.handle import Handle

#: Rows of a tensor, from the first to the one after the last.
Rows = tuple[int, int]
#: Source and output of what is an input of the request, and no node's output.
REQUEST_INPUT = (-1, "")


class PullLog:
    """Bytes and seconds by output, and by the node that they came from."""

    __slots__ = ("_costs", "_node")

    def __init__(self, node: str) -> None:
        """``node`` is that of the reader."""
        self._node = node
        self._costs: dict[tuple[int, str, str], tuple[int, float]] = {}

    @contextmanager
    def measure_pull(self, key: tuple[int, str], handle: Handle, rows: Rows | None = None) -> Iterator[None]:
        """Count what the block waits for: ``handle``, or ``rows`` of it, of the output ``key``.

        Where it raises, the time counts and no bytes.
        """
        began, pulled = time.perf_counter(), 0
        try:
            yield
            pulled = _count_bytes(handle, rows)
        finally:
            nbytes, seconds = self._costs.get((*key, handle.node), (0, 0.0))
            self._costs[*key, handle.node] = (nbytes + pulled, seconds + time.perf_counter() - began)

    def costs(self) -> tuple[PullCost, ...]:
        """Return all of it, by output."""
        return tuple(
            PullCost(source, output, node, self._node, nbytes, round(seconds, 6))
            for (source, output, node), (nbytes, seconds) in sorted(self._costs.items())
        )


def _count_bytes(handle: Handle, rows: Rows | None) -> int:
    if rows is None:
        return handle.nbytes
    return (rows[1] - rows[0]) * handle.nbytes // max(1, handle.shape[0])
