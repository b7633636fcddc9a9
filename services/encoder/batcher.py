"""Batches across requests: whoever waits when the encoder becomes free goes in, nobody waits for company."""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from omnibus.errors import StageUnavailable
from omnibus_models.contract import Prepared

Run = Callable[[Sequence[Prepared]], Awaitable[Sequence[Any]]]


class Waiting(NamedTuple):
    """One prepared item and the future of its result."""

    item: Prepared
    result: asyncio.Future[Any]

    @property
    def tokens(self) -> int:
        return int(self.item.meta.get("n_tokens", 1))


class Batcher:
    """Feeds ``run`` with batches of one modality, in order of arrival.

    A batch holds at most ``items`` items and, but for a single larger item, ``tokens`` output tokens.
    If a batch fails, its items are run one by one, so that only the guilty ones fail.
    """

    def __init__(self, run: Run, *, items: int, tokens: int) -> None:
        self._run = run
        self._items = items
        self._tokens = tokens
        self._waiting: deque[Waiting] = deque()
        self._wake = asyncio.Event()
        self._failed: Exception | None = None
        self.sizes: Counter[int] = Counter()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def encode(self, item: Prepared) -> Any:
        """The result of one item. A cancelled caller's item leaves the queue."""
        if self._failed is not None:
            raise self._failed
        entry = Waiting(item, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        self._wake.set()
        return await entry.result

    async def serve(self) -> None:
        """Run batches for ever; sleeps while nobody waits."""
        batch: list[Waiting] = []
        try:
            while True:
                await self._wake.wait()
                batch = self._take()
                if batch:
                    await self._settle(batch)
                elif not self._waiting:
                    self._wake.clear()
        finally:
            self._abandon(batch)

    def _take(self) -> list[Waiting]:
        alive = [entry for entry in self._waiting if not entry.result.done()]
        batch: list[Waiting] = []
        tokens = 0
        for entry in alive:
            if entry.item.modality != alive[0].item.modality:
                continue
            tokens += entry.tokens
            if batch and (len(batch) == self._items or tokens > self._tokens):
                break
            batch.append(entry)
        taken = set(map(id, batch))
        self._waiting = deque(entry for entry in alive if id(entry) not in taken)
        return batch

    async def _settle(self, batch: list[Waiting]) -> None:
        try:
            results = await self._run([entry.item for entry in batch])
        except Exception as error:  # noqa: BLE001 - one of these items is guilty: find it, and let the others go on
            await self._separate(batch, error)
            return
        self.sizes[len(batch)] += 1
        for entry, result in zip(batch, results, strict=True):
            if not entry.result.done():
                entry.result.set_result(result)

    async def _separate(self, batch: list[Waiting], error: Exception) -> None:
        if len(batch) > 1:
            for entry in batch:
                if not entry.result.done():
                    await self._settle([entry])
        elif not batch[0].result.done():
            batch[0].result.set_exception(error)

    def _abandon(self, batch: list[Waiting]) -> None:
        self._failed = StageUnavailable("the encoder was closed; send the request again")
        for entry in (*batch, *self._waiting):
            if not entry.result.done():
                entry.result.set_exception(self._failed)
