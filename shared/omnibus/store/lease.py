"""Lease of a job: renewed periodically, with its progress."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

import msgspec

from omnibus.errors import Retryable, StoreUnavailable
from omnibus.store import JobRecord, Store

log = logging.getLogger(__name__)

#: Minimum seconds between two reports of progress.
_REPORT_INTERVAL_SECONDS = 1.0
_RETRY_PAUSE_SECONDS = 0.1  # between two attempts to confirm a lease while the store is unavailable


class JobLease:
    """Lease of a job for ``owner``: since ``since`` (loop time), for ``seconds`` per renewal."""

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
        self.is_suspect = False  # an executor died during an invocation for it

    @property
    def has_trace(self) -> bool:
        """True if there were invocations for the job."""
        return self._trace is not bytes

    def set_trace(self, trace: Callable[[], bytes]) -> None:
        """Set the function that encodes invocations in progress. Another gateway may have to stop them."""
        self._trace = trace
        self._news.set()

    def report_progress(self, percent: int) -> None:
        """Record the progress in percent. It never decreases."""
        self._progress = max(self._progress, percent)

    def mark_lost(self) -> None:
        """Mark the lease as lost: the job was removed, or another worker has it."""
        self._lost = True
        self._news.set()

    def renew(self) -> None:
        """Renew the lease in the store now: the store may have lost it."""
        self._told = None
        self._news.set()

    async def confirm(self) -> None:
        """Check with the store that the job is still held here. Raises ``Retryable`` if not."""
        try:
            async with asyncio.timeout_at(self._said + self._seconds):
                while not self._lost:
                    is_held = await self._renew_in_store(asyncio.get_running_loop().time())
                    if is_held:
                        return
                    if is_held is False:
                        break
                    # The store may have lost the job. It is not completed before its lease is certain.
                    await asyncio.sleep(_RETRY_PAUSE_SECONDS)
        except TimeoutError:
            pass
        raise Retryable(f"{self._job[1]} is no longer held here")

    async def hold_until_lost(self) -> None:
        """Hold the job; return when the lease is lost, and before another worker can have it."""
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
                log.warning("%s %s: the store does not answer, so another worker may continue it", *self._job)
                return

    async def _renew_in_store(self, now: float) -> bool | None:
        """Return True if the job is held; None if the store does not answer."""
        progress, trace = self._progress, self._trace()
        try:
            is_held = await self._store.hold_job(*self._job, self.owner, self._seconds, progress, trace)
            is_held = is_held or await self._restore_in_store(progress, trace)
        except StoreUnavailable as error:
            log.warning("%s %s: %s", *self._job, error)
            self._told = None
            return None
        if is_held:
            self._said, self._told = now, (progress, trace)
        return is_held

    async def _restore_in_store(self, progress: int, trace: bytes) -> bool:
        """Restore a lost job, unless it was removed or has another owner."""
        record = msgspec.structs.replace(self._record, progress=progress, trace=trace)
        return await self._store.restore_job(self._job[0], record, self._seconds, self.owner)

    async def _wait_for_change(self, seconds: float) -> None:
        """Wait for ``seconds``, or until the trace or the lease changes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        self._news.clear()
