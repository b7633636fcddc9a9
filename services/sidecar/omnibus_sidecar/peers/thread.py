"""A thread with its own event loop: moving bytes must not delay allocations."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")

_STOP_SECONDS = 10.0


class PeerThread:
    """The loop of all sockets to other sidecars. ``main`` is the loop of the ledger; each calls into the other."""

    def __init__(self, main: asyncio.AbstractEventLoop) -> None:
        self.main = main
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="peers", daemon=True)
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        self._thread.start()

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` on this loop until it ends or ``stop`` cancels it.

        Call this in the thread of the loop.
        """
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call ``function`` on this loop, from any thread."""
        self.loop.call_soon_threadsafe(function, *arguments)

    def call_main(self, function: Callable[..., object], *arguments: object) -> None:
        """Call ``function`` on the loop of the ledger, from any thread."""
        if not self.main.is_closed():
            self.main.call_soon_threadsafe(function, *arguments)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` returns on this loop. Called on the loop of the ledger."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop))

    async def stop(self) -> None:
        """Cancel everything that runs here and end the thread; no byte is moved afterwards."""
        if self._thread.is_alive():
            await self.run(self._cancel_tasks())
            self.call(self.loop.stop)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join, _STOP_SECONDS)

    async def _cancel_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()


def current_task() -> asyncio.Task[Any]:
    """Return the current task."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("there is no current task: call this in a coroutine")
    return task
