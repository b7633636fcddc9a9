"""Continuous batching: sequences join and leave a running batch between two steps.

One turn of the engine is at most one share of prefill and one decode step of every sequence that is
ready. The turn's arithmetic runs in the runner's compute thread; everything else, joins, leaves and
delivery, on the event loop between two calls, so nothing here needs a lock. Method: Orca (Yu et al.
2022, iteration-level scheduling), prefill in shares as in Sarathi-Serve (Agrawal et al. 2024).
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from collections.abc import Sequence as Rows
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from omnibus.errors import Fatal, StageUnavailable
from omnibus_models.contract import Decoder
from services.llm.sampling import choose
from services.llm.sequence import Outcome, Sequence, Step
from services.llm.slots import SlotCache

S = TypeVar("S", bound=Sequence)
S_in = TypeVar("S_in", bound=Sequence, contravariant=True)
Compute = Callable[..., Awaitable[Any]]


class Feed(Protocol[S_in]):
    """What a step consumes and what goes with each token; differs between thinker and talker."""

    def ready(self, sequence: S_in) -> bool:
        """Whether ``sequence`` can take the next step now."""

    def inputs(self, batch: Rows[S_in]) -> Tensor:
        """Inputs of the next step, [B, H]. May be called again for the same step."""

    def prefilled(self, sequence: S_in, hidden: Tensor) -> None:
        """See ``hidden`` [t, H'] of the next share of the prompt."""

    def begun(self, sequence: S_in) -> np.ndarray | None:
        """What goes with the first token."""

    def stepped(self, batch: Rows[S_in], inputs: Tensor, hidden: Tensor) -> list[np.ndarray | None]:
        """What goes with each row's next token. May be called again for the same step."""


class Engine(Generic[S]):
    """Runs up to ``slots`` sequences of up to ``context`` positions on one decoder.

    ``share`` is the most prompt tokens that are computed between two decode steps. ``compute`` runs a
    function in the compute thread.
    """

    def __init__(
        self, decoder: Decoder, feed: Feed[S], compute: Compute, *, slots: int, context: int, share: int
    ) -> None:
        self._decoder = decoder
        self._feed = feed
        self._compute = compute
        self._share = share
        self._cache = SlotCache(slots, context)
        self._waiting: deque[S] = deque()
        self._joining: list[S] = []
        self._active: list[S] = []  # the sequence in slot i is number i
        self._wake = asyncio.Event()
        self._failed: Exception | None = None
        self.batches: Counter[int] = Counter()
        self.tokens = 0

    @property
    def used(self) -> int:
        return len(self._active) + len(self._joining)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @contextmanager
    def admit(self, sequence: S) -> Iterator[S]:
        """Queue ``sequence``; leaving the block, however it is left, frees its slot before the next step."""
        if self._failed is not None:
            raise self._failed
        self._waiting.append(sequence)
        self._wake.set()
        try:
            yield sequence
        finally:
            sequence.gone = True
            self._wake.set()

    def wake(self) -> None:
        """Look again: a sequence may have become ready."""
        self._wake.set()

    async def serve(self) -> None:
        """Turn for ever; sleeps while nobody is ready."""
        try:
            while True:
                self._wake.clear()
                if not await self._turn():
                    await self._wake.wait()
        except Exception as error:  # the engine's own boundary: whoever waits for it must not wait for ever
            self._abandon(error)
            raise
        finally:
            self._abandon(StageUnavailable("the engine was closed; send the request again"))

    async def _turn(self) -> bool:
        if any(sequence.gone for sequence in self._active):
            await self._compute(self._evict)
        shares = self._shares()
        if shares:
            self._deliver(await self._compute(self._prefill, shares))
        batch = [slot for slot, sequence in enumerate(self._active) if self._steps(sequence)]
        if batch:
            self._deliver(await self._compute(self._decode, batch))
        return bool(shares or batch)

    def _steps(self, sequence: S) -> bool:
        return not sequence.gone and self._feed.ready(sequence)

    def _shares(self) -> list[tuple[S, int]]:
        self._admit_waiting()
        shares, left = [], self._share
        for sequence in self._joining:
            size = min(sequence.length - sequence.done, left)
            if size:
                shares.append((sequence, size))
                left -= size
        return shares

    def _admit_waiting(self) -> None:
        self._joining = [sequence for sequence in self._joining if not sequence.gone]
        self._waiting = deque(sequence for sequence in self._waiting if not sequence.gone)
        while self._waiting and self.used < self._cache.slots:
            self._joining.append(self._waiting.popleft())

    def _deliver(self, outcomes: list[Outcome]) -> None:
        self._joining = [sequence for sequence in self._joining if not sequence.prefilled]
        for sequence, result in outcomes:
            if isinstance(result, Step):
                self.tokens += 1
                sequence.gone |= result.finish is not None
                sequence.inbox.put(result)
            else:
                sequence.gone = sequence.broken = True
                sequence.inbox.fail(result)

    def _abandon(self, error: Exception) -> None:
        self._failed = self._failed or error
        for sequence in (*self._waiting, *self._joining, *self._active):
            sequence.inbox.fail(self._failed)

    # From here on: in the compute thread, while the event loop waits for the result.

    def warm(self) -> None:
        """Take the memory of all slots, and pay for whatever the first passes cost."""
        decoder, filled = self._decoder, DynamicCache()
        inputs = decoder.embed(torch.zeros(1, dtype=torch.long, device=decoder.device))
        positions = torch.zeros(decoder.axes, 1, 1, dtype=torch.long, device=decoder.device)
        decoder.forward(inputs[None], positions, filled, None)
        self._cache.insert(filled)
        self._cache.begin([0])
        decoder.logits(decoder.forward(inputs[None], positions, self._cache, self._cache.mask())[:, -1])
        self._cache.remove(0)

    def _evict(self) -> None:
        for slot in reversed(range(len(self._active))):
            if self._active[slot].gone:
                self._cache.remove(slot, wipe=self._active[slot].broken)
                self._active[slot] = self._active[-1]
                self._active.pop()

    def _prefill(self, shares: list[tuple[S, int]]) -> list[Outcome]:
        outcomes = []
        for sequence, size in shares:
            result: Step | Exception | None
            try:
                result = self._extend(sequence, size)
            except Exception as error:  # noqa: BLE001 - one request's boundary: whatever it breaks, the others go on
                result = error
            if result is not None:
                outcomes.append(Outcome(sequence, result))
        return outcomes

    def _extend(self, sequence: S, size: int) -> Step | None:
        start, end = sequence.done, sequence.done + size
        inputs, positions = sequence.inputs[None, start:end], sequence.positions[:, None, start:end]
        hidden = self._decoder.forward(inputs, positions, sequence.cache, None)
        self._feed.prefilled(sequence, hidden[0])
        sequence.done = end
        return self._begin(sequence, hidden[:, -1]) if sequence.prefilled else None

    def _begin(self, sequence: S, hidden: Tensor) -> Step:
        logits = self._decoder.logits(hidden)
        _check(logits)
        side = self._feed.begun(sequence)
        [token] = choose(logits, [sequence.picker])
        finish = sequence.accept(token)
        if finish is None:
            self._cache.insert(sequence.cache)
            self._active.append(sequence)
        sequence.release()
        return Step(token, finish, side)

    def _decode(self, slots: list[int]) -> list[Outcome]:
        try:
            return self._step(slots)
        except Exception as error:  # noqa: BLE001 - one of these rows is guilty: find it, and let the others go on
            if len(slots) == 1:
                return [Outcome(self._active[slots[0]], error)]
            return [outcome for slot in slots for outcome in self._decode([slot])]

    def _step(self, slots: list[int]) -> list[Outcome]:
        batch = [self._active[slot] for slot in slots]
        inputs = self._feed.inputs(batch)
        self._cache.begin(slots)
        hidden = self._decoder.forward(inputs[:, None], self._positions(slots), self._cache, self._cache.mask())[:, -1]
        logits = self._decoder.logits(hidden)
        _check(logits)
        sides = self._feed.stepped(batch, inputs, hidden)
        tokens = choose(logits, [sequence.picker for sequence in batch])
        self._cache.advance(slots)
        self.batches[len(slots)] += 1
        return [
            Outcome(sequence, Step(token, sequence.accept(token), side))
            for sequence, token, side in zip(batch, tokens, sides, strict=True)
        ]

    def _positions(self, slots: list[int]) -> Tensor:
        rows = [self._cache.lengths[slot] + self._active[slot].delta for slot in slots]
        positions = torch.tensor(rows, device=self._decoder.device)
        return positions[None, :, None].expand(self._decoder.axes, -1, 1)


def _check(logits: Tensor) -> None:
    if bool(torch.isnan(logits).any()):
        raise Fatal("the model computed values that are not numbers for this request; check its media and weights")
