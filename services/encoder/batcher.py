"""Batches across requests: whoever waits when the encoder becomes free goes in, nobody waits for company."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from omnibus.errors import StageUnavailable
from omnibus.executor.scheduler import Budget, Schedule
from omnibus.executor.start_time import mine
from omnibus_models.contract import Prepared

Run = Callable[[Sequence[Prepared]], Awaitable[Sequence[Any]]]


class Loop(Protocol):
    """A loop of steps that an encoder shares with a language model, see ``services.llm.engine.engine``."""

    @property
    def schedule(self) -> Schedule[Any]: ...

    def check(self) -> None:
        """Raise what ended the loop, if it has ended."""

    def wake(self) -> None:
        """Look again: an item has come."""


class Waiting:
    """One prepared item and the future of its result."""

    __slots__ = ("batcher", "began", "item", "result")

    def __init__(self, batcher: "Batcher", item: Prepared) -> None:
        self.batcher = batcher
        self.item = item
        self.began = mine()
        self.result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @property
    def tokens(self) -> int:
        return max(1, int(self.item.meta.get("n_tokens", 1)))

    async def settle(self, batch: "Sequence[Waiting]") -> None:
        await self.batcher.settle(batch)

    def fail(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)


class Batcher:
    """Feeds ``run`` with batches of one modality.

    A batch holds at most ``items`` items and, but for a single larger item, ``tokens`` output tokens; the
    order is that of ``omnibus.executor.scheduler``. If a batch fails, its items are run one by one, so that
    only the guilty ones fail. With a ``loop`` that one decides when a batch is run, and ``serve`` is not used.
    """

    def __init__(self, run: Run, *, items: int, tokens: int, loop: Loop | None = None, patience: float = 0.0) -> None:
        self._run = run
        self._loop = loop
        self._own: Schedule[Waiting] = Schedule(0, Budget(0, 0), patience=patience, whole=tokens, split=False)
        self._wake = asyncio.Event()
        self._failed: Exception | None = None
        self.budget = Budget(tokens, tokens, items)
        self.sizes: Counter[int] = Counter()

    @property
    def waiting(self) -> int:
        """Items that wait, those of other encoders of the loop included."""
        return self._schedule.media

    @property
    def _schedule(self) -> Schedule[Any]:
        return self._own if self._loop is None else self._loop.schedule

    async def encode(self, item: Prepared) -> Any:
        """The result of one item. A cancelled caller's item leaves the queue."""
        self._check()
        entry, kind = Waiting(self, item), (self, item.modality)
        self._schedule.kinds.setdefault(kind, self.budget)
        self._schedule.item(entry, entry.tokens, time.monotonic(), kind)
        self._nudge()
        try:
            return await entry.result
        finally:
            self._schedule.leave(entry)

    async def serve(self) -> None:
        """Run batches for ever; sleeps while nobody waits."""
        try:
            while True:
                self._wake.clear()
                turn = self._own.turn()
                if turn.media:
                    await self.settle(turn.media)
                else:
                    await self._wake.wait()
        finally:
            self._failed = StageUnavailable("the encoder was closed; send the request again")
            for entry in list(self._own):
                entry.fail(self._failed)

    async def settle(self, batch: Sequence[Waiting]) -> None:
        """Run those of ``batch`` that are still wanted and tell them; raises nothing."""
        batch = [entry for entry in batch if not entry.result.done()]
        if not batch:
            return
        for entry in batch:
            entry.began.now()
        try:
            results = await self._run([entry.item for entry in batch])
        except Exception as error:  # noqa: BLE001 - one of these items is guilty: find it, and let the others go on
            await self._separate(batch, error)
            return
        self.sizes[len(batch)] += 1
        for entry, result in zip(batch, results, strict=True):
            if not entry.result.done():
                entry.result.set_result(result)

    async def _separate(self, batch: Sequence[Waiting], error: Exception) -> None:
        if len(batch) > 1:
            for entry in batch:
                await self.settle([entry])
        else:
            batch[0].fail(error)

    def _check(self) -> None:
        if self._loop is not None:
            self._loop.check()
        if self._failed is not None:
            raise self._failed

    def _nudge(self) -> None:
        if self._loop is None:
            self._wake.set()
        else:
            self._loop.wake()
