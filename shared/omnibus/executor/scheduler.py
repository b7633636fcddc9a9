"""Selection of work for the next step of an executor. Pure state: no clock, no I/O.

One step holds every decoding sequence, then shares of prompts and media items as far as budgets allow. With goals and
measured costs (``omnibus.executor.step_budget``), the budgets are the time that the step's decoding sequences leave:
few leave much, many leave little. So a long prompt or a large image does not stop the tokens of others, and free slots
cost nothing. Work that cannot be cut runs alone if it is larger than a budget. That is a media item, or a span of a
prompt whose tokens need each other. Method: TriInfer, algorithm 1 (stage-level batching).

Media do not run ahead of a full language model. While an older request of its tenant waits for a slot, an item waits
too if its sequence needs a slot here. In overload, a backlog of media would otherwise take time from decode steps, for
sequences that no slot is free for (``omnibus.executor.due_queue``).

Order: the tenant with the least service is first (``omnibus.executor.tenant_order``), then its earliest due work. Work
is due at its arrival plus up to ``patience``, in proportion to its size. Short prompts overtake long ones (ModServe,
section 5), but never one that has waited for ``patience``. Due times do not change, so all work runs in the end.
Without patience, the order is that of arrival.
"""

from bisect import insort
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import count
from typing import Any, Generic, NamedTuple, TypeVar

from omnibus.executor.due_queue import Due as Due
from omnibus.executor.due_queue import DueQueue, MediaQueue
from omnibus.executor.step_budget import NO_COSTS, CostTable, StepCosts
from omnibus.executor.step_turns import StepTurns
from omnibus.executor.tenant_order import NO_TENANT, TenantOrder, TenantShare

K = TypeVar("K", bound=Hashable)


class StepBudget(NamedTuple):
    """Most tokens in one step: ``beside`` decoding sequences, or ``alone``.

    ``items`` is the most media items of any size; one item is always allowed. ``costs`` are seconds by tokens. With
    costs and a goal, a step holds the tokens that its time allows, but at least ``least``.
    """

    beside: int
    alone: int
    items: int = 1
    least: int = 1
    costs: CostTable | None = None

    def token_limit(self, decodes: object, seconds: float | None = None, part: float = 1.0) -> int:
        """Return the most tokens of a step.

        ``decodes`` is true if sequences decode in it, and ``part`` is the usable part of the ``seconds`` that are left.
        Without costs or without a goal for the seconds, it is that part of the fixed number of tokens.
        """
        most = self.beside if decodes else self.alone
        if self.costs is None or seconds is None:
            return max(1, int(most * part))
        return max(self.least, self.costs.largest_size(seconds * part, most))


class StepPlan(NamedTuple, Generic[K]):
    """One step: sequences that decode, prompts with their tokens, and media items of one kind."""

    decode: list[K]
    prefill: list[tuple[K, int]]
    media: list[K]

    def __bool__(self) -> bool:
        return bool(self.decode or self.prefill or self.media)


class Schedule(Generic[K]):
    """Sequences and media items of one executor until their last step.

    A sequence takes one of ``slots`` from its admission until its removal. ``spare`` more slots are for tenants without
    a slot. ``budget`` is for prompts; ``kinds`` are the budgets by kind of media. ``patience`` is in seconds, and
    prompts of size ``whole`` wait for all of it. With ``split``, prompts and media share one device: media get half of
    the budget while prompts also have work, and prompts get the remaining time. With ``batched``, shares of several
    prompts cost as much as one prompt of all their tokens; otherwise each has its own cost. ``costs`` are the goals and
    the costs of decode steps.
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
        self._left: dict[K, int] = {}  # prompt tokens to compute
        self._held: dict[K, None] = {}  # sequences in a slot without work
        self._decoding: dict[K, None] = {}
        self._media: MediaQueue[K] = MediaQueue(self._order, self._waiting)
        self._encoding: dict[K, None] = {}

    # Arrivals

    def add_prompt(
        self,
        key: K,
        tokens: int,
        now: float,
        spans: Sequence[tuple[int, int]] = (),
        tenant: TenantShare = NO_TENANT,
        since: float | None = None,
    ) -> None:
        """Add a sequence with a prompt of ``tokens`` tokens (at least 1).

        It waits for a slot, then for its prefill. Shares do not end inside of a span [begin, end) of ``spans``, which
        are sorted. ``since`` is the arrival of its request; None means ``now``.
        """
        due = self._make_due(key, _check_positive(tokens), now, tenant, since)
        self._waiting.push(due._replace(spans=spans))

    def add_prefilled(self, key: K, now: float, tenant: TenantShare = NO_TENANT, since: float | None = None) -> None:
        """Add a sequence that was prefilled elsewhere: it waits for a slot, then for ``start_decode``."""
        self._waiting.push(self._make_due(key, 0, now, tenant, since))

    def add_media(
        self,
        key: K,
        tokens: int,
        now: float,
        kind: Hashable,
        tenant: TenantShare = NO_TENANT,
        since: float | None = None,
        *,
        continues: bool = False,
    ) -> None:
        """Add a media item of ``tokens`` tokens (at least 1); a step encodes items of one of ``kinds``.

        The sequence of one that ``continues`` needs a slot here.
        """
        due = self._make_due(key, _check_positive(tokens), now, tenant, since)
        self._media.push_item(due._replace(kind=kind, continues=continues))

    def _make_due(self, key: K, size: int, now: float, tenant: TenantShare, since: float | None) -> Due[K]:
        at, came = due_time(now, self.patience, size, self.whole), now if since is None else since
        return Due(at, next(self._numbers), key, size, tenant=tenant, since=came)

    # Changes

    def shorten_prompt(self, key: K, tokens: int) -> None:
        """Reduce the waiting or running prompt of ``key`` to ``tokens`` (at least 1)."""
        _check_positive(tokens)
        if key in self._left:
            self._left[key] = min(self._left[key], tokens)
        else:
            self._waiting.shorten(key, tokens)

    def finish_prompt(self, key: K) -> None:
        """Finish the prompt of ``key``, which has a slot; the sequence then waits for ``start_decode``."""
        if key in self._left:
            self._hold_prefilled([key])

    def admit_waiting(self) -> list[K]:
        """Assign free slots and return the admitted keys. Their prompts may then be prefilled."""
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
        """Remove and return the next sequence to admit; None without a slot for it."""
        used = self.used
        if used < self.slots:
            return self._waiting.pop()
        if used < self.slots + self.spare and self._tenants:
            return self._waiting.pop(frozenset(self._tenants.values()))
        return None

    def start_decode(self, key: K) -> None:
        """Include a held sequence in every step from now on."""
        del self._held[key]
        self._decoding[key] = None

    def pause_decode(self, key: K) -> bool:
        """Hold a decoding sequence in its slot; returns whether it was decoding."""
        if key not in self._decoding:
            return False
        del self._decoding[key]
        self._held[key] = None
        return True

    def remove_key(self, key: K) -> None:
        """Remove ``key`` in any state and free its slot. Repeated calls are harmless."""
        self._tenants.pop(key, None)
        for stage in (self._decoding, self._held, self._encoding):
            if key in stage:
                del stage[key]
                return
        self._left.pop(key, None)
        self._prefilling = [due for due in self._prefilling if due.key != key]
        self._waiting.remove(key)
        self._media.remove_item(key)

    # Steps

    def next_step(self, ready: Callable[[K], bool] = lambda _: True) -> StepPlan[K]:
        """Return the next step, and count its shares as computed.

        Sequences whose prompt is complete then wait for ``start_decode``. ``ready`` returns whether a decoding sequence
        can take its next step.
        """
        decode = [key for key in self._decoding if ready(key)]
        prefilling = self._prefills_by_tenant()
        chosen = (
            self.turns.choose([self._tenants.get(key, "") for key in (*decode, *self._left)]) if self._tenants else None
        )
        if chosen is not None:
            decode = [key for key in decode if self._tenants.get(key, "") in chosen]
            prefilling = [due for due in prefilling if due.tenant.name in chosen]
        part = 0.5 if self.split and self._prefilling and self._media.next_item() is not None else 1.0
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
        """Return the prompts in slots: first the tenant with the least service."""
        ranks = {due.tenant: self._order.rank(due.tenant) for due in self._prefilling}
        return sorted(self._prefilling, key=lambda due: ranks[due.tenant]) if len(ranks) > 1 else self._prefilling

    def _hold_prefilled(self, done: list[K]) -> None:
        """Move sequences whose prompt is complete to the held ones."""
        for key in done:
            del self._left[key]
            self._held[key] = None
        if done:
            self._prefilling = [due for due in self._prefilling if due.key in self._left]

    def _media_batch(self, decodes: bool, seconds: float | None, part: float) -> tuple[list[K], float | None]:
        """Return a batch of due media items, and its seconds.

        It is the first due item, and others of its kind that fit, in order.

        The seconds are None if the costs are unknown.
        """
        first = self._media.next_item()
        if first is None:
            return [], 0.0
        kind = first.kind
        budget = self.kinds[kind]
        left = whole = budget.token_limit(decodes, seconds, part)
        batch: list[K] = []
        others: list[Due[K]] = []
        while len(batch) < budget.items and (due := self._media.pop_item()) is not None:
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
            self._media.push_item(due)
        self._encoding.update(dict.fromkeys(batch))
        return batch, None if budget.costs is None else budget.costs.seconds(whole - left)

    # Properties

    def has_slot(self, key: K) -> bool:
        return key in self._left or key in self._held or key in self._decoding

    @property
    def used(self) -> int:
        """Number of slots in use."""
        return len(self._left) + len(self._held) + len(self._decoding)

    @property
    def waiting(self) -> int:
        """Number of sequences without a slot."""
        return len(self._waiting)

    @property
    def media(self) -> int:
        """Number of media items that wait."""
        return len(self._media)

    def describe_budget(self) -> dict[str, Any]:
        """Return the budget of prompts as small JSON; ``beside_sequences`` is by number of decoding sequences."""
        budget = self.budget
        found: dict[str, Any] = {"beside": budget.beside, "alone": budget.alone, "items": budget.items}
        if budget.costs is not None and self.costs.decode is not None and self.costs.goals.tbt:
            found["beside_sequences"] = {
                str(count): budget.token_limit(True, self.costs.seconds_left(count))
                for count in self.costs.decode.sizes
            }
        return found

    def __iter__(self) -> Iterator[K]:
        """Iterate over all sequences and media items, in no particular order."""
        for due in (*self._waiting, *self._prefilling, *self._media):
            yield due.key
        yield from (*self._held, *self._decoding, *self._encoding)


def due_time(now: float, patience: float, size: int, whole: int) -> float:
    """Return the due time of work of ``size`` that arrives ``now``.

    It is later by a part of ``patience``; for ``whole``, by all of it.
    """
    return now + patience * min(1.0, size / whole)


def _share_size(spans: Sequence[tuple[int, int]], done: int, size: int, first: bool) -> int:
    """Return how many of ``size`` tokens after ``done`` fit without cutting ``spans``.

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
