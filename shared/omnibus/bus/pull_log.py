"""Bytes that a reader pulled from other nodes, and its waiting time."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from omnibus.bus.messages import PullCost
from omnibus.tensors.handle import Handle

#: Rows of a tensor, from the first to the one after the last.
Rows = tuple[int, int]
#: Source and output of an input of the request, which is not a node's output.
REQUEST_INPUT = (-1, "")


class PullLog:
    """Bytes and seconds by output and source node."""

    __slots__ = ("_costs", "_node")

    def __init__(self, node: str) -> None:
        """``node`` is that of the consumer."""
        self._node = node
        self._costs: dict[tuple[int, str, str], tuple[int, float]] = {}

    @contextmanager
    def measure_pull(self, key: tuple[int, str], handle: Handle, rows: Rows | None = None) -> Iterator[None]:
        """Count the block's pull of ``handle``, or ``rows`` of it, as ``key``.

        If it raises, the time counts, but not the bytes.
        """
        began, pull_bytes = time.perf_counter(), 0
        try:
            yield
            pull_bytes = _count_bytes(handle, rows)
        finally:
            nbytes, seconds = self._costs.get((*key, handle.node), (0, 0.0))
            self._costs[*key, handle.node] = (nbytes + pull_bytes, seconds + time.perf_counter() - began)

    def costs(self) -> tuple[PullCost, ...]:
        """Return the costs by output."""
        return tuple(
            PullCost(source, output, node, self._node, nbytes, round(seconds, 6))
            for (source, output, node), (nbytes, seconds) in sorted(self._costs.items())
        )


def _count_bytes(handle: Handle, rows: Rows | None) -> int:
    if rows is None:
        return handle.nbytes
    return (rows[1] - rows[0]) * handle.nbytes // max(1, handle.shape[0])
