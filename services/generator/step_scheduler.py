"""Choice of the pictures that take the next step together. Pure state: no clock, no I/O, no tensor.

Pictures of one shape share steps: who comes joins at the next one, who is done or gone leaves after it. Shapes
take turns, so that every picture gets the same share of the device whatever its size: a step costs its
positions, they are shared out among all pictures of its shape, and the shape whose pictures have had least
so far is next (start-time fair queueing). A shape that comes, or comes back, begins where the others are.

Of several tenants each gets the same share, which is divided among its pictures: in a step the first pictures of each
go first, then the second ones, and a picture counts for less the more its tenant has.
"""

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class StepSize(NamedTuple):
    """Size of one step of one picture: ``rows`` of a batch, of ``tokens`` positions each."""

    rows: int
    tokens: int

    @property
    def cost(self) -> int:
        return self.rows * self.tokens


class _Shape(Generic[K]):
    def __init__(self, had: float) -> None:
        self.sizes: dict[K, StepSize] = {}  # in order of arrival
        self.had = had  # positions for each of its pictures, since the beginning of time


class StepScheduler(Generic[K]):
    """Pictures from their first step to their last.

    ``pictures`` and ``tokens`` are most in one step, the latter but for a single larger picture. Of more, those
    that came first go first: they were as long on their way as all are together, the others wait.
    """

    def __init__(self, pictures: int, tokens: int) -> None:
        self.pictures = pictures
        self.tokens = tokens
        self._shapes: dict[Hashable, _Shape[K]] = {}
        self._of: dict[K, Hashable] = {}
        self._tenants: dict[K, str] = {}
        self._now = 0.0  # what the shape of the last step had had before it

    def join(self, key: K, shape: Hashable, size: StepSize, tenant: str = "") -> None:
        """``key``, a picture of ``tenant``, takes part from the next step of its shape on."""
        self._of[key] = shape
        self._tenants[key] = tenant
        if shape not in self._shapes:
            self._shapes[shape] = _Shape(self._now)
        self._shapes[shape].sizes[key] = size

    def remove_key(self, key: K) -> None:
        """``key`` is over, wherever it stands. Leaving twice is harmless."""
        shape = self._of.pop(key, None)
        self._tenants.pop(key, None)
        if shape is None:
            return
        del self._shapes[shape].sizes[key]
        if not self._shapes[shape].sizes:
            del self._shapes[shape]

    def next_batch(self) -> list[K]:
        """Return the keys of the pictures for the next step: all of one shape, each tenant's in order of arrival.
        Empty if there are none."""
        if not self._shapes:
            return []
        shape = min(self._shapes.values(), key=lambda each: each.had)
        batch = list(self._select_batch(shape))
        self._now = shape.had
        shape.had += sum(shape.sizes[key].cost for key in batch) / self._count_pictures(shape)
        return batch

    def _count_pictures(self, shape: _Shape[K]) -> float:
        """Pictures of ``shape``, each as a part of the mean number of a tenant's."""
        counts = Counter(self._tenants.values())
        if len(counts) == 1:
            return len(shape.sizes)
        mean = len(self._tenants) / len(counts)
        return sum(mean / counts[self._tenants[key]] for key in shape.sizes)

    def _order_by_tenant(self, shape: _Shape[K]) -> list[K]:
        """The first pictures of all tenants, the second ones, and so on."""
        numbers: Counter[str] = Counter()
        places = {}
        for key in shape.sizes:
            numbers[self._tenants[key]] += 1
            places[key] = numbers[self._tenants[key]]
        return sorted(places, key=places.__getitem__) if len(numbers) > 1 else list(places)

    def _select_batch(self, shape: _Shape[K]) -> Iterator[K]:
        left = self.tokens
        for place, key in enumerate(self._order_by_tenant(shape)):
            left -= shape.sizes[key].cost
            if place >= self.pictures or (left < 0 and place):
                return
            yield key

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[K]:
        """Everybody, in order of arrival."""
        yield from list(self._of)
