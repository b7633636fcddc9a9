"""Choice of the images that share the next step. Pure state: no clock, no I/O, no tensors.

Images of one shape share steps. A new image joins at the next step; a completed or cancelled image is removed after the
current one. Shapes take turns, so that every image gets the same share of the device at any size. A step costs its
positions, divided among all images of its shape. The shape whose images have had the least so far is next (start-time
fair queueing). A shape that is new, or has images again, starts level with the others.

Each tenant gets the same share, divided among its images. A step takes the first image of each tenant, then the second
of each. The more images a tenant has, the less each counts.
"""

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class StepSize(NamedTuple):
    """Size of one step of one image: ``rows`` of a batch, of ``tokens`` positions each."""

    rows: int
    tokens: int

    @property
    def cost(self) -> int:
        return self.rows * self.tokens


class _Shape(Generic[K]):
    def __init__(self, had: float) -> None:
        self.sizes: dict[K, StepSize] = {}  # in order of arrival
        self.had = had  # positions for each of its images, since the start


class StepScheduler(Generic[K]):
    """Images from their first step to their last.

    ``pictures`` and ``tokens`` are the most in one step, except that a single larger image is accepted. If there are
    more, the images that arrived first are stepped first; the others wait.
    """

    def __init__(self, pictures: int, tokens: int) -> None:
        self.pictures = pictures
        self.tokens = tokens
        self._shapes: dict[Hashable, _Shape[K]] = {}
        self._of: dict[K, Hashable] = {}
        self._tenants: dict[K, str] = {}
        self._now = 0.0  # what the shape of the last step had had before that step

    def join(self, key: K, shape: Hashable, size: StepSize, tenant: str = "") -> None:
        """Add ``key``, an image of ``tenant``, at its shape's next step."""
        self._of[key] = shape
        self._tenants[key] = tenant
        if shape not in self._shapes:
            self._shapes[shape] = _Shape(self._now)
        self._shapes[shape].sizes[key] = size

    def remove_key(self, key: K) -> None:
        """Remove ``key`` in any state. Removing it twice is harmless."""
        shape = self._of.pop(key, None)
        self._tenants.pop(key, None)
        if shape is None:
            return
        del self._shapes[shape].sizes[key]
        if not self._shapes[shape].sizes:
            del self._shapes[shape]

    def next_batch(self) -> list[K]:
        """Return the keys of the images for the next step; empty if there are none.

        All have one shape, and those of each tenant are in order of arrival.
        """
        if not self._shapes:
            return []
        shape = min(self._shapes.values(), key=lambda each: each.had)
        batch = list(self._select_batch(shape))
        self._now = shape.had
        shape.had += sum(shape.sizes[key].cost for key in batch) / self._count_pictures(shape)
        return batch

    def _count_pictures(self, shape: _Shape[K]) -> float:
        """Count the images of ``shape``.

        Each is weighted by the mean number of images per tenant, divided by that of its tenant.
        """
        counts = Counter(self._tenants.values())
        if len(counts) == 1:
            return len(shape.sizes)
        mean = len(self._tenants) / len(counts)
        return sum(mean / counts[self._tenants[key]] for key in shape.sizes)

    def _order_by_tenant(self, shape: _Shape[K]) -> list[K]:
        """Return the first image of every tenant, then every second one, etc."""
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
        """Iterate over all keys, in order of arrival."""
        yield from list(self._of)
