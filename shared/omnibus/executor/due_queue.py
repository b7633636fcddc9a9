"""Queue of waiting work, ordered by due time. Pure state: no clock."""

from collections.abc import Container, Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from omnibus.executor.tenant_order import NO_TENANT, TenantOrder, TenantShare

K = TypeVar("K", bound=Hashable)


class Due(NamedTuple, Generic[K]):
    """Work that is ordered by due time; ``number`` keeps the order of arrival among equals."""

    at: float
    number: int
    key: K
    size: int
    kind: Hashable = None
    spans: Sequence[tuple[int, int]] = ()
    tenant: TenantShare = NO_TENANT


class DueQueue(Generic[K]):
    """Queue of the tenants' work: first the tenant that ``order`` ranks first, then its earliest due work."""

    def __init__(self, order: TenantOrder) -> None:
        self._order = order
        self._heaps: dict[str, list[Due[K]]] = {}

    def push(self, due: Due[K]) -> None:
        heappush(self._heaps.setdefault(due.tenant.name, []), due)

    def first(self, but: Container[str] = ()) -> Due[K] | None:
        """Return the next work of a tenant that is not in ``but``."""
        heads = [heap[0] for name, heap in self._heaps.items() if name not in but]
        if len(heads) < 2:
            return heads[0] if heads else None
        return min(heads, key=lambda due: (self._order.rank(due.tenant), due.at, due.number))

    def pop(self, but: Container[str] = ()) -> Due[K] | None:
        """Remove and return the work that ``first`` returns."""
        due = self.first(but)
        if due is not None:
            heappop(self._heaps[due.tenant.name])
            if not self._heaps[due.tenant.name]:
                del self._heaps[due.tenant.name]
        return due

    def shorten(self, key: K, size: int) -> None:
        """Limit ``key`` to ``size`` and drop its spans."""
        for heap in self._heaps.values():
            for place, due in enumerate(heap):
                if due.key == key:
                    heap[place] = due._replace(size=min(due.size, size), spans=())

    def remove(self, key: K) -> None:
        for name, heap in list(self._heaps.items()):
            remaining = [due for due in heap if due.key != key]
            if len(remaining) < len(heap):
                heapify(remaining)
                self._heaps[name] = remaining
                if not remaining:
                    del self._heaps[name]

    def __len__(self) -> int:
        return sum(map(len, self._heaps.values()))

    def __iter__(self) -> Iterator[Due[K]]:
        for heap in self._heaps.values():
            yield from heap
