"""Selection of work for the next step of an executor that encodes, prefills and decodes. No clock, no I/O: pure state.

One step holds every sequence that decodes, then shares of prompts and media items as far as budgets allow. With
goals and measured costs (``omnibus.executor.step_budget``) the budgets are what this step's decoding sequences leave
of its time: few leave much, many leave little. So no long prompt and no large picture stops the tokens of others, and
slots that are free cost nothing. What cannot be cut is done alone when it is larger than a budget: a media item, or a
span of a prompt whose tokens need each other. Method: TriInfer, algorithm 1 (stage-level batching).

Order. The tenant that has had least goes first (``omnibus.executor.tenant_order``), and of its work what is due first.
Work is due at the time it came plus up to ``patience``, in proportion to its size: short
prompts overtake long ones (ModServe, section 5), but none that has waited for ``patience``. Due times never
change, so nothing waits for ever, and without patience the order is that of arrival.
"""

from bisect import insort
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import count
from typing import Any, Generic, NamedTuple, TypeVar

from omnibus.executor.due_queue import Due as Due
from omnibus.executor.due_queue import DueQueue
from omnibus.executor.step_budget import NO_COSTS, CostTable, StepCosts
from omnibus.executor.step_turns import StepTurns
from omnibus.executor.tenant_order import NO_TENANT, TenantOrder, TenantShare

K = TypeVar("K", bound=Hashable)


class StepBudget(NamedTuple):
    """Most tokens in one step: ``beside`` sequences that decode, and ``alone`` in a step without any.

    ``items`` are the most media items, whatever their size; one item is encoded however large it is. With ``costs``,
    seconds by tokens, a step whose time a goal bounds holds what its time allows, ``least`` tokens at least.
    """

    beside: int
    alone: int
    items: int = 1
    least: int = 1
    costs: CostTable | None = None

    def token_limit(self, decodes: object, seconds: float | None = None, part: float = 1.0) -> int:
        """Most tokens of a step in which something ``decodes`` or not, in a ``part`` of the ``seconds`` it has left.

        Without costs, or where no goal bounds the seconds, the part is of the fixed number of tokens.
        """
        most = self.beside if decodes else self.alone
        if self.costs is None or seconds is None:
            return max(1, int(most * part))
        return max(self.least, self.costs.largest_size(seconds * part, most))


class StepPlan(NamedTuple, Generic[K]):
    """One step: who decodes, who prefills how many tokens, and which media items, of one kind, are encoded."""

    decode: list[K]
    prefill: list[tuple[K, int]]
    media: list[K]

    def __bool__(self) -> bool:
        return bool(self.decode or self.prefill or self.media)


class Schedule(Generic[K]):
    """Sequences and media items of one executor, from their arrival to their last step.

    A sequence takes one of ``slots`` from its admission until it leaves; ``spare`` ones more are for tenants that have
    none. ``budget`` is that of prompts;
    ``kinds`` are those of each kind of media. ``patience`` is in seconds, ``whole`` the size that waits for all
    of it. ``split`` says that prompts and media take turns on one device: media have half of the budget while prompts
    have work too, and these have what is left. ``batched`` says that shares of several prompts cost as much as one of
    all their tokens; otherwise each costs for itself. ``costs`` are the goals and the costs of decode steps.
    """

    def __init__(
        self,
        slots: int,
        budget: StepBudget,
        *,
        patience: float = 0.0,
        whole: int = 1,
        split: bool = True,
        batched: bool = True,
        spare: int = 0,
    ) -> None:
        self.slots = slots
        self.spare = spare
        self.budget = budget
        self.costs: StepCosts = NO_COSTS
        self.batched = batched
        self.kinds: dict[Hashable, StepBudget] = {}
        self.patience = patience
        self.whole = whole
        self.split = split
        self._numbers = count()
        self.turns = StepTurns()
        self._order = TenantOrder()
        self._waiting: DueQueue[K] = DueQueue(self._order)
        self._tenants: dict[K, str] = {}  # of the sequences in slots
        self._prefilling: list[Due[K]] = []  # in order of due times; at most as many as slots
        self._left: dict[K, int] = {}  # prompt tokens that are not computed yet
        self._held: dict[K, None] = {}  # in a slot, and nothing to do for now
        self._decoding: dict[K, None] = {}
        self._media: DueQueue[K] = DueQueue(self._order)
        self._encoding: dict[K, None] = {}

    # Arrivals

    def add_prompt(
        self,
        key: K,
        tokens: int,
        now: float,
        spans: Sequence[tuple[int, int]] = (),
        tenant: TenantShare = NO_TENANT,
    ) -> None:
        """A sequence whose prompt has ``tokens`` tokens (at least 1): waits for a slot, then for its prefill.

        No share ends inside of one of the ``spans`` [begin, end) of its tokens, which are in order.
        """
        self._waiting.push(self._make_due(key, _check_positive(tokens), now, tenant)._replace(spans=spans))

    def add_prefilled(self, key: K, now: float, tenant: TenantShare = NO_TENANT) -> None:
        """A sequence that was prefilled elsewhere: waits for a slot, and is held there."""
        self._waiting.push(self._make_due(key, 0, now, tenant))

    def add_media(self, key: K, tokens: int, now: float, kind: Hashable, tenant: TenantShare = NO_TENANT) -> None:
        """A media item of ``tokens`` tokens (at least 1); one step encodes items of one of ``kinds`` only."""
        self._media.push(self._make_due(key, _check_positive(tokens), now, tenant)._replace(kind=kind))

    def _make_due(self, key: K, size: int, now: float, tenant: TenantShare) -> Due[K]:
        return Due(due_time(now, self.patience, size, self.whole), next(self._numbers), key, size, tenant=tenant)

    # Changes

    def shorten_prompt(self, key: K, tokens: int) -> None:
        """The prompt of ``key``, which waits or is being prefilled, needs only ``tokens`` more (at least 1)."""
        _check_positive(tokens)
        if key in self._left:
            self._left[key] = min(self._left[key], tokens)
        else:
            self._waiting.shorten(key, tokens)

    def finish_prompt(self, key: K) -> None:
        """``key``, which has a slot, needs nothing more of its prompt: it is held."""
        if key in self._left:
            self._hold_prefilled([key])

    def admit_waiting(self) -> list[K]:
        """Give free slots to those who wait; returns who got one. Arrivals are held, prompts begin to prefill."""
        admitted = []
        while (due := self._next_admitted()) is not None:
            if due.tenant.name:
                self._tenants[due.key] = due.tenant.name
            if due.size:
                self._left[due.key] = due.size
                insort(self._prefilling, due)
            else:
                self._held[due.key] = None
            admitted.append(due.key)
        return admitted

    def _next_admitted(self) -> Due[K] | None:
        """The next one to get a slot, if there is one for it; it waits no more."""
        used = self.used
        if used < self.slots:
            return self._waiting.pop()
        if used < self.slots + self.spare and self._tenants:
            return self._waiting.pop(frozenset(self._tenants.values()))
        return None

    def start_decode(self, key: K) -> None:
        """A sequence that was held takes part in every step from now on."""
        del self._held[key]
        self._decoding[key] = None

    def pause_decode(self, key: K) -> bool:
        """Hold a sequence that decodes in its slot; returns whether it was decoding."""
        if key not in self._decoding:
            return False
        del self._decoding[key]
        self._held[key] = None
        return True

    def remove_key(self, key: K) -> None:
        """``key`` is over, wherever it stands: its slot is free. Leaving twice is harmless."""
        self._tenants.pop(key, None)
        for stage in (self._decoding, self._held, self._encoding):
            if key in stage:
                del stage[key]
                return
        self._left.pop(key, None)
        self._prefilling = [due for due in self._prefilling if due.key != key]
        self._waiting.remove(key)
        self._media.remove(key)

    # Steps

    def next_step(self, ready: Callable[[K], bool] = lambda _: True) -> StepPlan[K]:
        """The next step. Its shares count as computed: who has no prompt left is held from here on.

        ``ready`` says of a decoding sequence whether it can take its next step.
        """
        decode = [key for key in self._decoding if ready(key)]
        prefilling = self._prefills_by_tenant()
        chosen = (
            self.turns.choose([self._tenants.get(key, "") for key in (*decode, *self._left)]) if self._tenants else None
        )
        if chosen is not None:
            decode = [key for key in decode if self._tenants.get(key, "") in chosen]
            prefilling = [due for due in prefilling if due.tenant.name in chosen]
        part = 0.5 if self.split and self._prefilling and self._media else 1.0
        seconds = self.costs.seconds_left(len(decode))
        media, spent = self._media_batch(bool(decode), seconds, part)
        if seconds is not None and spent is not None and self.split:
            seconds, part = seconds - spent, 1.0
        return StepPlan(decode, self._prefill_shares(prefilling, bool(decode), seconds, part), media)

    def _prefill_shares(
        self, prefilling: Sequence[Due[K]], decodes: bool, seconds: float | None, part: float
    ) -> list[tuple[K, int]]:
        tokens = most = self.budget.token_limit(decodes, seconds, part)
        shares: list[tuple[K, int]] = []
        for due in prefilling:
            if tokens <= 0:
                break
            size = _share_size(due.spans, due.size - self._left[due.key], min(self._left[due.key], tokens), not shares)
            if not size:
                continue
            self._left[due.key] -= size
            shares.append((due.key, size))
            self._order.charge(due.tenant, size)
            most -= size
            tokens = most
            if seconds is not None and self.budget.costs is not None and not self.batched:
                seconds -= self.budget.costs.seconds(size)
                tokens = self.budget.costs.largest_size(seconds, most)
        self._hold_prefilled([key for key, _ in shares if not self._left[key]])
        return shares

    def _prefills_by_tenant(self) -> list[Due[K]]:
        """Prompts in slots, those of the tenant that has had least first."""
        ranks = {due.tenant: self._order.rank(due.tenant) for due in self._prefilling}
        return sorted(self._prefilling, key=lambda due: ranks[due.tenant]) if len(ranks) > 1 else self._prefilling

    def _hold_prefilled(self, done: list[K]) -> None:
        """``done`` have no prompt left: they are held."""
        for key in done:
            del self._left[key]
            self._held[key] = None
        if done:
            self._prefilling = [due for due in self._prefilling if due.key in self._left]

    def _media_batch(self, decodes: bool, seconds: float | None, part: float) -> tuple[list[K], float | None]:
        """The item that is due first, and those of its kind that fit in with it, in order; and what they cost.

        The seconds are None where they are not known.
        """
        first = self._media.first()
        if first is None:
            return [], 0.0
        kind = first.kind
        budget = self.kinds[kind]
        left = whole = budget.token_limit(decodes, seconds, part)
        batch: list[K] = []
        others: list[Due[K]] = []
        while len(batch) < budget.items and (due := self._media.pop()) is not None:
            if due.kind != kind:
                others.append(due)
                continue
            if batch and due.size > left:
                others.append(due)
                break
            left -= due.size
            batch.append(due.key)
            self._order.charge(due.tenant, due.size)
        for due in others:
            self._media.push(due)
        self._encoding.update(dict.fromkeys(batch))
        return batch, None if budget.costs is None else budget.costs.seconds(whole - left)

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

    def describe_budget(self) -> dict[str, Any]:
        """The budget of prompts as small JSON: ``beside_sequences`` is the one beside so many that decode."""
        budget = self.budget
        found: dict[str, Any] = {"beside": budget.beside, "alone": budget.alone, "items": budget.items}
        if budget.costs is not None and self.costs.decode is not None and self.costs.goals.tbt:
            found["beside_sequences"] = {
                str(count): budget.token_limit(True, self.costs.seconds_left(count))
                for count in self.costs.decode.sizes
            }
        return found

    def __iter__(self) -> Iterator[K]:
        """Everybody, in no order that means anything."""
        for due in (*self._waiting, *self._prefilling, *self._media):
            yield due.key
        yield from (*self._held, *self._decoding, *self._encoding)


def due_time(now: float, patience: float, size: int, whole: int) -> float:
    """Return when work of ``size`` that comes ``now`` is due: of the ``patience`` for ``whole``, its part later."""
    return now + patience * min(1.0, size / whole)


def _share_size(spans: Sequence[tuple[int, int]], done: int, size: int, first: bool) -> int:
    """Return how many of ``size`` tokens behind ``done`` to take so that they end outside of ``spans``.

    The ``first`` share takes any span, whole.
    """
    for begin, end in spans:
        if begin < done + size < end:
            return end - done if first and begin == done else begin - done
    return size


def _check_positive(size: int) -> int:
    if size < 1:
        raise ValueError(f"work of size {size} cannot be scheduled")
    return size
