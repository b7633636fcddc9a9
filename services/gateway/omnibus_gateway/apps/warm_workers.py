"""Limit on the number of app workers that have a process."""

import asyncio
from typing import Protocol


class PooledWorker(Protocol):
    """Worker of one app, as the pool needs it."""

    @property
    def is_idle(self) -> bool:
        """True if it has no requests."""

    def cool(self) -> None:
        """Stop its process; the next call starts a new one."""


class WarmWorkers:
    """Workers with a process, at most ``limit``: the least recently called one gives up its place.

    A worker with requests keeps its process. A registered or restarted worker starts at once, over the limit if
    necessary; a called worker waits for a place.
    """

    def __init__(self, limit: int) -> None:
        self._limit = max(1, limit)
        self._workers: dict[PooledWorker, None] = {}  # least recently called first
        self._waiting: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def has_room(self) -> bool:
        """True if another worker may start without a replacement."""
        return len(self._workers) < self._limit

    def add(self, worker: PooledWorker) -> None:
        """Add ``worker``, which has a process or is about to start one."""
        self.touch(worker)
        while len(self._workers) > self._limit and self._cool_one(worker):
            pass

    def touch(self, worker: PooledWorker) -> None:
        """Mark ``worker`` as the most recently called."""
        self._workers.pop(worker, None)
        self._workers[worker] = None

    def discard(self, worker: PooledWorker) -> None:
        """Remove ``worker``, which has no process any longer."""
        if worker in self._workers:
            del self._workers[worker]
            self.note_idle()

    def note_idle(self) -> None:
        """Offer the place of an idle worker to the first waiter."""
        if self._waiting:
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(None)
                    return
        elif len(self._workers) > self._limit:
            self._cool_one(None)

    async def take_place(self, worker: PooledWorker) -> None:
        """Wait until ``worker`` may start a process, and reserve its place."""
        while not self.has_room and not self._cool_one(worker):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self.note_idle()  # another worker may take the place
                raise
            finally:
                self._waiting.remove(waiter)
        self.touch(worker)

    def _cool_one(self, but: PooledWorker | None) -> bool:
        """Stop the process of the least recently called idle worker; False if there is none."""
        for worker in self._workers:
            if worker is not but and worker.is_idle:
                del self._workers[worker]
                worker.cool()
                return True
        return False
