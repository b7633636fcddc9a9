"""Allocation of pages for the arena, before any client writes to them.

Memory limits of this machine and this process's control groups.

The sidecar allocates the pages of the arena, so they count against its limits.
"""

import asyncio
import logging
import os
from asyncio import AbstractEventLoop
from collections.abc import Callable
from pathlib import Path

from omnibus.errors import ArenaFull, Fatal
from omnibus.process.memory import GROUP_ROOT, GROUPS, free_group_bytes, memory_limit
from omnibus.tensors.allocator import Allocator
from omnibus.tensors.arena import Arena

log = logging.getLogger(__name__)

_MIB = 1 << 20


def check_arena_size(size: int, directory: str, groups: Path = GROUPS, root: Path = GROUP_ROOT) -> None:
    """Raise ``Fatal`` if an arena of ``size`` bytes can never be filled: the kernel would kill the sidecar.

    Logs a warning if it cannot be filled now.
    """
    limit = memory_limit(groups, root)
    if limit is not None and size >= limit:
        raise Fatal(
            f"an arena of {size // _MIB} MiB does not fit into this container's memory limit of {limit // _MIB} MiB. "
            "Lower OMNIBUS_SIDECAR_ARENA_MIB, or raise the limit (mem_limit in compose, sidecar.resources in the chart)"
        )
    room = os.statvfs(directory)
    free = room.f_bavail * room.f_frsize
    if free < size:
        log.warning(
            "%s has %d MiB free now, but the arena may grow to %d MiB: tensors that do not fit will be rejected",
            directory, free // _MIB, size // _MIB,
        )  # fmt: skip


def require(nbytes: int, groups: Path = GROUPS, root: Path = GROUP_ROOT) -> None:
    """Raise ``ArenaFull`` if ``nbytes`` more bytes would exceed a memory limit.

    The kernel would kill a process otherwise.
    """
    free = free_group_bytes(groups, root)
    if free and min(free) < nbytes:
        raise ArenaFull(f"this container's memory limit leaves {min(free)} bytes, {nbytes} are needed")


#: The kernel allocates pages in pieces of this size: about 25 ms each, in a thread; 5 ms without huge pages.
EXTENT_BYTES = 16 << 20
_PAGE_BYTES = 4096
_RETRY_SECONDS = 0.5  # after a failure: each attempt allocates all free pages, then releases them
_REFUSAL = b"the machine has no free pages for shared memory"


class Backing:
    """Adds memory of ``arena`` to ``allocator`` after it has pages.

    Pages are never released, so a block in memory that was used before costs nothing here. ``on_change`` is called
    after each attempt, and when a failed attempt may be repeated.
    """

    def __init__(
        self, arena: Arena, allocator: Allocator, loop: AbstractEventLoop, on_change: Callable[[], None]
    ) -> None:
        self._arena = arena
        self._allocator = allocator
        self._loop = loop
        self._changed = on_change
        self._task: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._failed = False
        self._closed = False

    @property
    def busy(self) -> bool:
        """True while pages are being allocated."""
        return self._task is not None

    def refusal_reason(self, nbytes: int) -> bytes:
        """Return why ``nbytes`` bytes are not free; empty if the arena is full."""
        return _REFUSAL if self._failed and self._allocator.required_end(nbytes) is not None else b""

    async def start(self) -> None:
        """Allocate pages for a first piece. Without free memory the arena starts empty."""
        await self._back_pages(min(EXTENT_BYTES, self._allocator.size))

    def extend_for(self, nbytes: int) -> None:
        """Start to allocate pages for a block of ``nbytes`` bytes.

        Does nothing if that cannot help, or an allocation is in progress.
        """
        if self._task is not None or self._retry is not None or self._closed:
            return
        end = self._allocator.required_end(nbytes)
        if end is None or end <= self._allocator.backed:
            return
        self._task = self._loop.create_task(self._extend_backing(end))

    async def close(self) -> None:
        """End the allocation in progress; the arena may be closed afterwards."""
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _extend_backing(self, end: int) -> None:
        try:
            is_backed = await self._back_pages(_round_up(end, EXTENT_BYTES)) or await self._back_pages(
                _round_up(end, _PAGE_BYTES)
            )
        finally:
            self._task = None
        if self._closed:
            return
        if not is_backed:
            self._retry = self._loop.call_later(_RETRY_SECONDS, self._end_retry_pause)
        self._changed()

    async def _back_pages(self, end: int) -> bool:
        """Allocate pages up to ``end``. Returns False if there are none."""
        end = min(end, self._allocator.size)
        try:
            await self._loop.run_in_executor(None, self._allocate_pages, self._allocator.backed, end)
        except ArenaFull as error:
            if not self._failed:
                log.warning("%s; until there are, tensors that need new pages are rejected", error)
            self._failed = True
            return False
        self._failed = False
        self._allocator.add_backed(end)
        return True

    def _allocate_pages(self, start: int, end: int) -> None:
        require(end - start)
        self._arena.allocate_pages(start, end)

    def _end_retry_pause(self) -> None:
        self._retry = None
        self._changed()


def _round_up(nbytes: int, step: int) -> int:
    return -(-nbytes // step) * step
