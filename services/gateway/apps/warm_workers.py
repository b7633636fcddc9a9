"""The workers of this gateway's apps that have a process: a bound for them, as few apps are called at the same time."""

import asyncio
from typing import Protocol


class PooledWorker(Protocol):
    """Worker of one app as the pool sees it."""

    @property
    def is_idle(self) -> bool:
        """True if nobody needs its process now."""

    def cool(self) -> None:
        """Give up its process; the next call starts another one."""


class WarmWorkers:
    """Workers with a process, ``limit`` at most; whoever was called least recently gives up its place.

    A worker with requests keeps its process. One that is registered or restarted is there at once, over the limit if it
    must; one that is called waits for a place.
    """

    def __init__(self, limit: int) -> None:
        self._limit = max(1, limit)
        self._workers: dict[PooledWorker, None] = {}  # the least recently called first
        self._waiting: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def has_room(self) -> bool:
        """True if one more worker may start without another one's place."""
        return len(self._workers) < self._limit

    def add(self, worker: PooledWorker) -> None:
        """``worker`` has a process, or is about to start one."""
        self.touch(worker)
        while len(self._workers) > self._limit and self._cool_one(worker):
            pass

    def touch(self, worker: PooledWorker) -> None:
        """``worker`` is called: it is the last one to give up its place."""
        self._workers.pop(worker, None)
        self._workers[worker] = None

    def discard(self, worker: PooledWorker) -> None:
        """``worker`` has no process any more, and starts none."""
        if worker in self._workers:
            del self._workers[worker]
            self.note_idle()

    def note_idle(self) -> None:
        """A worker may give up its place from now on: the first that waits for one looks again."""
        if self._waiting:
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(None)
                    return
        elif len(self._workers) > self._limit:
            self._cool_one(None)

    async def take_place(self, worker: PooledWorker) -> None:
        """Wait until ``worker`` may start a process, and count it as one that does."""
        while not self.has_room and not self._cool_one(worker):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self.note_idle()  # its place is another's
                raise
            finally:
                self._waiting.remove(waiter)
        self.touch(worker)

    def _cool_one(self, but: PooledWorker | None) -> bool:
        """Have the idle worker that was called least recently give up its process; False when there is none."""
        for worker in self._workers:
            if worker is not but and worker.is_idle:
                del self._workers[worker]
                worker.cool()
                return True
        return False
