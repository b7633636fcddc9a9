"""Selection of work for the next step of an executor that encodes, prefills and decodes. No clock, no I/O: pure state.

One step holds every sequence that decodes, then shares of prompts, then media items, the latter two within
budgets that were found for the service goals (``omnibus.executor.step_budget``). So no long prompt and no large
picture stops the tokens of others. What cannot be cut is done alone when it is larger than a budget: a media item,
or a span of a prompt whose tokens need each other. Method: TriInfer, algorithm 1 (stage-level batching).

Order. Work is due at the time it came plus up to ``patience``, in proportion to its size: short
prompts overtake long ones (ModServe, section 5), but none that has waited for ``patience``. Due times never
change, so nothing waits for ever, and without patience the order is that of arrival.
"""

from bisect import insort
from collections.abc import Callable, Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class StepBudget(NamedTuple):
    """Most tokens in one step: ``beside`` sequences that decode, and ``alone`` in a step without any.

    ``items`` are the most media items, whatever their size; one item is encoded however large it is.
    """

    beside: int
    alone: int
    items: int = 1


class StepPlan(NamedTuple, Generic[K]):
    """One step: who decodes, who prefills how many tokens, and which media items, of one kind, are encoded."""

    decode: list[K]
    prefill: list[tuple[K, int]]
    media: list[K]

    def __bool__(self) -> bool:
        return bool(self.decode or self.prefill or self.media)


class Due(NamedTuple, Generic[K]):
    """Work in the order in which it is done; ``number`` keeps equals in the order in which they came."""

    at: float
    number: int
    key: K
    size: int
    kind: Hashable = None
    spans: Sequence[tuple[int, int]] = ()


class Schedule(Generic[K]):
    """Sequences and media items of one executor, from their arrival to their last step.

    A sequence takes one of ``slots`` from its admission until it leaves. ``budget`` is that of prompts;
    ``kinds`` are those of each kind of media. ``patience`` is in seconds, ``whole`` the size that waits for all
    of it. ``split`` says that prompts and media take turns on one device: each has half of its budget while
    the other has work too.
    """

    def __init__(self, slots: int, budget: StepBudget, *, patience: float = 0.0, whole: int = 1, split: bool = True):
        self.slots = slots
        self.budget = budget
        self.kinds: dict[Hashable, StepBudget] = {}
        self.patience = patience
        self.whole = whole
        self.split = split
        self._numbers = count()
        self._waiting: list[Due[K]] = []
        self._prefilling: list[Due[K]] = []  # in order of due times; at most as many as slots
        self._left: dict[K, int] = {}  # prompt tokens that are not computed yet
        self._held: dict[K, None] = {}  # in a slot, and nothing to do for now
        self._decoding: dict[K, None] = {}
        self._media: list[Due[K]] = []
        self._encoding: dict[K, None] = {}

    # Arrivals

    def add_prompt(self, key: K, tokens: int, now: float, spans: Sequence[tuple[int, int]] = ()) -> None:
        """A sequence whose prompt has ``tokens`` tokens (at least 1): waits for a slot, then for its prefill.

        No share ends inside of one of the ``spans`` [begin, end) of its tokens, which are in order.
        """
        heappush(self._waiting, self._make_due(key, _check_positive(tokens), now)._replace(spans=spans))

    def add_prefilled(self, key: K, now: float) -> None:
        """A sequence that was prefilled elsewhere: waits for a slot, and is held there."""
        heappush(self._waiting, self._make_due(key, 0, now))

    def add_media(self, key: K, tokens: int, now: float, kind: Hashable) -> None:
        """A media item of ``tokens`` tokens (at least 1); one step encodes items of one of ``kinds`` only."""
        heappush(self._media, self._make_due(key, _check_positive(tokens), now, kind))

    def _make_due(self, key: K, size: int, now: float, kind: Hashable = None) -> Due[K]:
        return Due(now + self.patience * min(1.0, size / self.whole), next(self._numbers), key, size, kind)

    # Changes

    def admit_waiting(self) -> list[K]:
        """Give free slots to those who wait; returns who got one. Arrivals are held, prompts begin to prefill."""
        admitted = []
        while self._waiting and self.used < self.slots:
            due = heappop(self._waiting)
            if due.size:
                self._left[due.key] = due.size
                insort(self._prefilling, due)
            else:
                self._held[due.key] = None
            admitted.append(due.key)
        return admitted

    def start_decode(self, key: K) -> None:
        """A sequence that was held takes part in every step from now on."""
        del self._held[key]
        self._decoding[key] = None

    def remove_key(self, key: K) -> None:
        """``key`` is over, wherever it stands: its slot is free. Leaving twice is harmless."""
        for stage in (self._decoding, self._held, self._encoding):
            if key in stage:
                del stage[key]
                return
        self._left.pop(key, None)
        self._prefilling = [due for due in self._prefilling if due.key != key]
        self._waiting = _remove_key(self._waiting, key)
        self._media = _remove_key(self._media, key)

    # Steps

    def next_step(self, ready: Callable[[K], bool] = lambda _: True) -> StepPlan[K]:
        """The next step. Its shares count as computed: who has no prompt left is held from here on.

        ``ready`` says of a decoding sequence whether it can take its next step.
        """
        decode = [key for key in self._decoding if ready(key)]
        half = self.split and bool(self._prefilling) and bool(self._media)
        return StepPlan(
            decode, self._prefill_shares(_token_limit(self.budget, decode, half)), self._media_batch(bool(decode), half)
        )

    def _prefill_shares(self, tokens: int) -> list[tuple[K, int]]:
        shares: list[tuple[K, int]] = []
        for due in self._prefilling:
            if tokens <= 0:
                break
            size = _share_size(due.spans, due.size - self._left[due.key], min(self._left[due.key], tokens), not shares)
            if not size:
                continue
            tokens -= size
            self._left[due.key] -= size
            shares.append((due.key, size))
        done = [key for key, _ in shares if not self._left[key]]
        for key in done:
            del self._left[key]
            self._held[key] = None
        if done:
            self._prefilling = [due for due in self._prefilling if due.key in self._left]
        return shares

    def _media_batch(self, decodes: bool, half: bool) -> list[K]:
        """The item that is due first, and those of its kind that fit in with it, in order."""
        if not self._media:
            return []
        kind = self._media[0].kind
        budget = self.kinds[kind]
        left = _token_limit(budget, decodes, half)
        batch: list[K] = []
        others: list[Due[K]] = []
        while self._media and len(batch) < budget.items:
            due = heappop(self._media)
            if due.kind != kind:
                others.append(due)
                continue
            if batch and due.size > left:
                others.append(due)
                break
            left -= due.size
            batch.append(due.key)
        for due in others:
            heappush(self._media, due)
        self._encoding.update(dict.fromkeys(batch))
        return batch

    # What is known

    def has_slot(self, key: K) -> bool:
        """Return whether ``key`` has a slot."""
        return key in self._left or key in self._held or key in self._decoding

    @property
    def used(self) -> int:
        """Slots that are taken."""
        return len(self._left) + len(self._held) + len(self._decoding)

    @property
    def waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._waiting)

    @property
    def media(self) -> int:
        """Media items that wait."""
        return len(self._media)

    def __iter__(self) -> Iterator[K]:
        """Everybody, in no order that means anything."""
        for due in (*self._waiting, *self._prefilling, *self._media):
            yield due.key
        yield from (*self._held, *self._decoding, *self._encoding)


def _share_size(spans: Sequence[tuple[int, int]], done: int, size: int, first: bool) -> int:
    """Return how many of ``size`` tokens behind ``done`` to take so that they end outside of ``spans``.

    The ``first`` share takes any span, whole.
    """
    for begin, end in spans:
        if begin < done + size < end:
            return end - done if first and begin == done else begin - done
    return size


def _token_limit(budget: StepBudget, decodes: object, half: bool) -> int:
    whole = budget.beside if decodes else budget.alone
    return max(1, whole // 2) if half else whole


def _check_positive(size: int) -> int:
    if size < 1:
        raise ValueError(f"work of size {size} cannot be scheduled")
    return size


def _remove_key(heap: list[Due[K]], key: K) -> list[Due[K]]:
    kept = [due for due in heap if due.key != key]
    heapify(kept)
    return kept
