"""Batches across requests: an encoder takes all waiting items when it becomes free, and waits for no more."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from omnibus.errors import StageUnavailable
from omnibus.executor.job_clock import charge_jobs, current_clock
from omnibus.executor.scheduler import Schedule, StepBudget
from omnibus_models.contract import Prepared

Run = Callable[[Sequence[Prepared]], Awaitable[Sequence[Any]]]


class EngineLoop(Protocol):
    """A loop of steps that an encoder shares with a language model.

    See ``omnibus_llm.engine.engine``.
    """

    @property
    def schedule(self) -> Schedule[Any]: ...

    def raise_if_failed(self) -> None:
        """Raise the error that ended the loop, if it has ended."""

    def wake(self) -> None:
        """Wake the loop: an item has arrived."""


class QueuedItem:
    """One prepared item and the future of its result."""

    __slots__ = ("batcher", "clock", "item", "result")

    def __init__(self, batcher: "Batcher", item: Prepared) -> None:
        self.batcher = batcher
        self.item = item
        self.clock = current_clock()
        self.result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def tokens(self) -> int:
        return max(1, int(self.item.meta.get("n_tokens", 1)))

    async def run_batch(self, batch: "Sequence[QueuedItem]") -> None:
        await self.batcher.run_batch(batch)

    def fail(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)


class Batcher:
    """Feeds ``run`` with batches of one modality.

    A batch contains at most ``items`` items and ``tokens`` output tokens; a single larger item is accepted alone. The
    order is that of ``omnibus.executor.scheduler``. If a batch fails, its items run one by one, so that only the items
    at fault fail. With a ``loop``, the loop decides when a batch runs, and ``serve`` is not used.
    """

    def __init__(
        self, run: Run, *, items: int, tokens: int, loop: EngineLoop | None = None, patience: float = 0.0
    ) -> None:
        self._run = run
        self._loop = loop
        self._own: Schedule[QueuedItem] = Schedule(0, StepBudget(0, 0), patience=patience, whole=tokens, split=False)
        self._wake = asyncio.Event()
        self._failed: Exception | None = None
        self.budget = StepBudget(tokens, tokens, items)
        self.sizes: Counter[int] = Counter()

    @property
    def waiting(self) -> int:
        """Waiting items, including those of other encoders of the loop."""
        return self._schedule.media

    @property
    def _schedule(self) -> Schedule[Any]:
        return self._own if self._loop is None else self._loop.schedule

    async def encode(self, item: Prepared) -> Any:
        """Return the result of one item. If the caller is cancelled, the item is removed from the queue."""
        self._raise_if_failed()
        entry, kind = QueuedItem(self, item), (self, item.modality)
        self._schedule.kinds.setdefault(kind, self.budget)
        clock = entry.clock
        self._schedule.add_media(
            entry, entry.tokens, time.monotonic(), kind, clock.tenant, clock.came, continues=clock.continues
        )
        self._wake_loop()
        try:
            return await entry.result
        finally:
            self._schedule.remove_key(entry)

    async def serve(self) -> None:
        """Run batches until cancelled; sleep while no item waits."""
        try:
            while True:
                self._wake.clear()
                turn = self._own.next_step()
                if turn.media:
                    await self.run_batch(turn.media)
                else:
                    await self._wake.wait()
        finally:
            self._failed = StageUnavailable("the encoder was closed; send the request again")
            for entry in list(self._own):
                entry.fail(self._failed)

    async def run_batch(self, batch: Sequence[QueuedItem]) -> None:
        """Run the items of ``batch`` that are still needed; raises nothing."""
        batch = [entry for entry in batch if not entry.result.done()]
        if not batch:
            return
        for entry in batch:
            entry.clock.set_now()
        try:
            with charge_jobs([(entry.clock, float(entry.tokens)) for entry in batch]):
                results = await self._run([entry.item for entry in batch])
        except Exception as error:  # noqa: BLE001 - find the item at fault, and let the others continue
            await self._run_one_by_one(batch, error)
            return
        self.sizes[len(batch)] += 1
        for entry, result in zip(batch, results, strict=True):
            if not entry.result.done():
                entry.result.set_result(result)

    async def _run_one_by_one(self, batch: Sequence[QueuedItem], error: Exception) -> None:
        if len(batch) > 1:
            for entry in batch:
                await self.run_batch([entry])
        else:
            batch[0].fail(error)

    def _raise_if_failed(self) -> None:
        if self._loop is not None:
            self._loop.raise_if_failed()
        if self._failed is not None:
            raise self._failed

    def _wake_loop(self) -> None:
        if self._loop is None:
            self._wake.set()
        else:
            self._loop.wake()
