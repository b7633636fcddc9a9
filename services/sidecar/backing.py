"""Pages for the arena, before anybody writes there."""

import asyncio
import logging
from asyncio import AbstractEventLoop
from collections.abc import Callable

from omnibus.errors import ArenaFull
from omnibus.tensors.allocator import Allocator
from omnibus.tensors.arena import Arena
from services.sidecar import limits

log = logging.getLogger(__name__)

#: Memory gets its pages in pieces of this size: about 25 ms each, in a thread; 5 ms without huge pages.
EXTENT_BYTES = 16 << 20
_PAGE_BYTES = 4096
_RETRY_SECONDS = 0.5  # after a refusal: each attempt takes all pages that there are, and gives them back
_REFUSAL = b"the machine has no free pages for shared memory"


class Backing:
    """Extends what ``allocator`` may hand out by memory of ``arena`` that has pages.

    What has pages keeps them, so a block in memory that was used before costs nothing here. ``changed`` is
    called after each attempt, and when a failed one may be repeated.
    """

    def __init__(
        self, arena: Arena, allocator: Allocator, loop: AbstractEventLoop, changed: Callable[[], None]
    ) -> None:
        self._arena = arena
        self._allocator = allocator
        self._loop = loop
        self._changed = changed
        self._task: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._failed = False
        self._closed = False

    @property
    def busy(self) -> bool:
        """Pages are on their way."""
        return self._task is not None

    def refusal_reason(self, nbytes: int) -> bytes:
        """The reason why there are no ``nbytes`` bytes, when it is not that the arena is full."""
        return _REFUSAL if self._failed and self._allocator.required_end(nbytes) is not None else b""

    async def start(self) -> None:
        """Back a first piece. Without room for it the arena begins empty."""
        await self._back_pages(min(EXTENT_BYTES, self._allocator.size))

    def extend_for(self, nbytes: int) -> None:
        """Begin to back what a block of ``nbytes`` bytes needs, if that can help and is not under way."""
        if self._task is not None or self._retry is not None or self._closed:
            return
        end = self._allocator.required_end(nbytes)
        if end is None or end <= self._allocator.backed:
            return
        self._task = self._loop.create_task(self._extend_backing(end))

    async def close(self) -> None:
        """End what is under way: the arena may be closed afterwards."""
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _extend_backing(self, end: int) -> None:
        try:
            backed = await self._back_pages(_round_up(end, EXTENT_BYTES)) or await self._back_pages(
                _round_up(end, _PAGE_BYTES)
            )
        finally:
            self._task = None
        if self._closed:
            return
        if not backed:
            self._retry = self._loop.call_later(_RETRY_SECONDS, self._end_retry_pause)
        self._changed()

    async def _back_pages(self, end: int) -> bool:
        """Give memory up to ``end`` its pages. False when there are none."""
        end = min(end, self._allocator.size)
        try:
            await self._loop.run_in_executor(None, self._allocate_pages, self._allocator.backed, end)
        except ArenaFull as error:
            if not self._failed:
                log.warning("%s; tensors that need more memory than was used so far are refused until then", error)
            self._failed = True
            return False
        self._failed = False
        self._allocator.add_backed(end)
        return True

    def _allocate_pages(self, start: int, end: int) -> None:
        limits.require(end - start)
        self._arena.allocate_pages(start, end)

    def _end_retry_pause(self) -> None:
        self._retry = None
        self._changed()


def _round_up(nbytes: int, step: int) -> int:
    return -(-nbytes // step) * step
