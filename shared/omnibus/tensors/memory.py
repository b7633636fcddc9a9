"""Addresses of an arena in the memory of a process, which drivers of GPUs need."""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class MemoryRange(NamedTuple):
    """Bytes of this process's address space."""

    address: int
    nbytes: int
    is_writable: bool


#: Called with the mappings of an arena as soon as there are any; returns what is to be called before they are given up.
MappingObserver = Callable[[Sequence[MemoryRange]], Callable[[], None]]
