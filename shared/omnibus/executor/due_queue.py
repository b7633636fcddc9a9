"""Queues of waiting work, ordered by due time. Pure state: no clock.

Media do not run ahead of a full language model: see ``is_held``.
"""

from collections.abc import Container, Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import Generic, NamedTuple, TypeVar

from omnibus.executor.tenant_order import NO_TENANT, TenantOrder, TenantShare

K = TypeVar("K", bound=Hashable)


class Due(NamedTuple, Generic[K]):
    """Work that is ordered by due time; ``number`` keeps the order of arrival among equals.

    ``since`` is the arrival of its request. A media item ``continues`` if its sequence needs a slot here.
    """

    at: float
    number: int
    key: K
    size: int
    kind: Hashable = None
    spans: Sequence[tuple[int, int]] = ()
    tenant: TenantShare = NO_TENANT
    since: float = 0.0
    continues: bool = False


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
            self.pop_tenant(due.tenant.name)
        return due

    def pop_tenant(self, name: str) -> None:
        """Remove the next work of the tenant ``name``."""
        heappop(self._heaps[name])
        if not self._heaps[name]:
            del self._heaps[name]

    def tenant_heads(self) -> list[Due[K]]:
        """Return the next work of each tenant."""
        return [heap[0] for heap in self._heaps.values()]

    def oldest_request(self, name: str) -> float:
        """Return the arrival of the oldest request of the tenant ``name``; infinite if it has no work here."""
        return min((due.since for due in self._heaps.get(name, ())), default=inf)

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


def is_held(continues: bool, since: float, oldest: float) -> bool:
    """Return whether a media item must wait because the language model is full.

    ``continues`` is true for an item whose sequence needs a slot in the same executor. ``since`` is the arrival of its
    request, and ``oldest`` that of the oldest request of its tenant that waits for a slot; infinite if none does.
    Encoding more media ahead of older requests would only take time from decode steps: in overload, a backlog of media
    would starve them.
    """
    return continues and oldest < since


class MediaQueue(Generic[K]):
    """Queue of media items; ``waiting`` are the sequences that wait for a slot (``is_held``)."""

    def __init__(self, order: TenantOrder, waiting: DueQueue[K]) -> None:
        self._order = order
        self._waiting = waiting
        self._queues: dict[bool, DueQueue[K]] = {False: DueQueue(order), True: DueQueue(order)}

    def push_item(self, due: Due[K]) -> None:
        self._queues[due.continues].push(due)

    def next_item(self) -> Due[K] | None:
        """Return the next item that may be encoded."""
        heads = [self._queues[False].first(), self._queues[True].first(self._held_tenants())]
        found = [due for due in heads if due is not None]
        return min(found, key=lambda due: (self._order.rank(due.tenant), due.at, due.number), default=None)

    def pop_item(self) -> Due[K] | None:
        """Remove and return the item that ``next_item`` returns."""
        due = self.next_item()
        if due is not None:
            self._queues[due.continues].pop_tenant(due.tenant.name)
        return due

    def _held_tenants(self) -> Container[str]:
        return {
            due.tenant.name
            for due in self._queues[True].tenant_heads()
            if is_held(due.continues, due.since, self._waiting.oldest_request(due.tenant.name))
        }

    def remove_item(self, key: K) -> None:
        for queue in self._queues.values():
            queue.remove(key)

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Due[K]]:
        for queue in self._queues.values():
            yield from queue
