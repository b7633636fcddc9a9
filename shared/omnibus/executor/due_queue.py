"""Work that waits, in the order in which it is done. Pure state: no clock."""

from collections.abc import Container, Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from omnibus.executor.tenant_order import NO_TENANT, TenantOrder, TenantShare

K = TypeVar("K", bound=Hashable)


class Due(NamedTuple, Generic[K]):
    """Work in the order in which it is done; ``number`` keeps equals in the order in which they came."""

    at: float
    number: int
    key: K
    size: int
    kind: Hashable = None
    spans: Sequence[tuple[int, int]] = ()
    tenant: TenantShare = NO_TENANT


class DueQueue(Generic[K]):
    """Work of tenants: the tenant that is first by ``order``, and of its work what is due first."""

    def __init__(self, order: TenantOrder) -> None:
        self._order = order
        self._heaps: dict[str, list[Due[K]]] = {}

    def push(self, due: Due[K]) -> None:
        heappush(self._heaps.setdefault(due.tenant.name, []), due)

    def first(self, but: Container[str] = ()) -> Due[K] | None:
        """The next work of a tenant that is not in ``but``."""
        heads = [heap[0] for name, heap in self._heaps.items() if name not in but]
        if len(heads) < 2:
            return heads[0] if heads else None
        return min(heads, key=lambda due: (self._order.rank(due.tenant), due.at, due.number))

    def pop(self, but: Container[str] = ()) -> Due[K] | None:
        """Take the next work of a tenant that is not in ``but``."""
        due = self.first(but)
        if due is not None:
            heappop(self._heaps[due.tenant.name])
            if not self._heaps[due.tenant.name]:
                del self._heaps[due.tenant.name]
        return due

    def shorten(self, key: K, size: int) -> None:
        """Let ``key`` be of ``size`` at most, which has no spans any more."""
        for heap in self._heaps.values():
            for place, due in enumerate(heap):
                if due.key == key:
                    heap[place] = due._replace(size=min(due.size, size), spans=())

    def remove(self, key: K) -> None:
        for name, heap in list(self._heaps.items()):
            kept = [due for due in heap if due.key != key]
            if len(kept) < len(heap):
                heapify(kept)
                self._heaps[name] = kept
                if not kept:
                    del self._heaps[name]

    def __len__(self) -> int:
        return sum(map(len, self._heaps.values()))

    def __iter__(self) -> Iterator[Due[K]]:
        for heap in self._heaps.values():
            yield from heap
