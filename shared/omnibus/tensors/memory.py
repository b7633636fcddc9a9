"""Addresses of an arena in a process's memory, for drivers of GPUs."""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class MemoryRange(NamedTuple):
    """Bytes of this process's address space."""

    address: int
    nbytes: int
    is_writable: bool


#: Called with the mappings of an arena once they exist; returns a function to call before they are dropped.
MappingObserver = Callable[[Sequence[MemoryRange]], Callable[[], None]]
