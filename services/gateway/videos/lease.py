"""Holding a job: saying so again and again, and with it how far it is."""

import asyncio
import logging
from contextlib import suppress

from omnibus.errors import StoreUnavailable
from omnibus.store import Store

log = logging.getLogger(__name__)

#: Seconds between two words of progress, at least.
_EVERY = 1.0


class Lease:
    """A job that ``owner`` has held since ``since`` (of the loop's clock) for ``seconds`` at a time."""

    def __init__(self, store: Store, kind: str, id: str, owner: str, seconds: float, since: float) -> None:
        self.owner = owner
        self._store = store
        self._job = (kind, id)
        self._seconds = seconds
        self._said = since
        self._lost = asyncio.Event()
        self._progress = self._told = 0
        self.begun = False

    def tell(self, percent: int) -> None:
        """The work has begun, and so much of it is done. What was said before is not taken back."""
        self.begun = True
        self._progress = max(self._progress, percent)

    def lose(self) -> None:
        """Somebody says that the job is held by another one, or gone."""
        self._lost.set()

    async def keep(self) -> None:
        """Hold the job; returns when it is lost, and before another one can have it."""
        tick = min(_EVERY, self._seconds / 3)
        while not await self._lost_within(tick):
            now = asyncio.get_running_loop().time()
            if self._progress == self._told and now < self._said + self._seconds / 3:
                continue
            try:
                async with asyncio.timeout_at(self._said + self._seconds):
                    if not await self._hold(now):
                        return
            except TimeoutError:
                log.warning("%s %s: the store is silent, so another worker may go on with it", *self._job)
                return

    async def _hold(self, now: float) -> bool:
        progress = self._progress
        try:
            held = await self._store.hold_job(*self._job, self.owner, self._seconds, progress)
        except StoreUnavailable as error:
            log.warning("%s %s: %s", *self._job, error)
            return True  # until the time is over
        self._said, self._told = now, progress
        return held

    async def _lost_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._lost.wait()
        return self._lost.is_set()
