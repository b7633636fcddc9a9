"""Holding a job: saying so again and again, and with it how far it is."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

import msgspec

from omnibus.errors import Retryable, StoreUnavailable
from omnibus.store import JobRecord, Store

log = logging.getLogger(__name__)

#: Seconds between two words of progress, at least.
_REPORT_INTERVAL_SECONDS = 1.0
_RETRY_PAUSE_SECONDS = 0.1  # between two attempts to confirm a lease while the store is away


class JobLease:
    """A job that ``owner`` has held since ``since`` (of the loop's clock) for ``seconds`` at a time."""

    def __init__(self, store: Store, kind: str, job: JobRecord, owner: str, seconds: float, since: float) -> None:
        self.owner = owner
        self._store = store
        self._record = job
        self._job = (kind, job.id)
        self._seconds = seconds
        self._said = since
        self._news = asyncio.Event()
        self._lost = False
        self._trace: Callable[[], bytes] = bytes
        self._progress = 0
        self._told: tuple[int, bytes] | None = (0, b"")
        self.is_suspect = False  # an executor died with what is under way

    @property
    def has_trace(self) -> bool:
        """True if anything was under way for the job."""
        return self._trace is not bytes

    def set_trace(self, trace: Callable[[], bytes]) -> None:
        """From now on ``trace`` says what is under way for the job, for who may have to clear it away."""
        self._trace = trace
        self._news.set()

    def report_progress(self, percent: int) -> None:
        """Record the progress in percent. It never decreases: a lower value than before changes nothing."""
        self._progress = max(self._progress, percent)

    def mark_lost(self) -> None:
        """Somebody says that the job is held by another one, or gone."""
        self._lost = True
        self._news.set()

    def renew(self) -> None:
        """Tell the store at once that the job is held: it may have lost it."""
        self._told = None
        self._news.set()

    async def confirm(self) -> None:
        """Check with the store that the job is still held here. Raises ``Retryable`` when it is not."""
        try:
            async with asyncio.timeout_at(self._said + self._seconds):
                while not self._lost:
                    held = await self._renew_in_store(asyncio.get_running_loop().time())
                    if held:
                        return
                    if held is False:
                        break
                    # The store may have lost the job: what is not known to be held is not completed.
                    await asyncio.sleep(_RETRY_PAUSE_SECONDS)
        except TimeoutError:
            pass
        raise Retryable(f"{self._job[1]} is not held here any more")

    async def hold_until_lost(self) -> None:
        """Hold the job; returns when it is lost, and before another one can have it."""
        tick = min(_REPORT_INTERVAL_SECONDS, self._seconds / 3)
        while True:
            await self._wait_for_change(tick)
            if self._lost:
                return
            now = asyncio.get_running_loop().time()
            if (self._progress, self._trace()) == self._told and now < self._said + self._seconds / 3:
                continue
            try:
                async with asyncio.timeout_at(self._said + self._seconds):
                    if await self._renew_in_store(now) is False:
                        return
            except TimeoutError:
                log.warning("%s %s: the store is silent, so another worker may go on with it", *self._job)
                return

    async def _renew_in_store(self, now: float) -> bool | None:
        """Return whether the job is held; None when the store does not answer: try again."""
        progress, trace = self._progress, self._trace()
        try:
            held = await self._store.hold_job(*self._job, self.owner, self._seconds, progress, trace)
            held = held or await self._restore_in_store(progress, trace)
        except StoreUnavailable as error:
            log.warning("%s %s: %s", *self._job, error)
            self._told = None
            return None
        if held:
            self._said, self._told = now, (progress, trace)
        return held

    async def _restore_in_store(self, progress: int, trace: bytes) -> bool:
        """Hold a job again that the store has lost, unless it was removed or somebody else has it."""
        record = msgspec.structs.replace(self._record, progress=progress, trace=trace)
        return await self._store.restore_job(self._job[0], record, self._seconds, self.owner)

    async def _wait_for_change(self, seconds: float) -> None:
        """Wait for so long, or until what begins or is lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        self._news.clear()
