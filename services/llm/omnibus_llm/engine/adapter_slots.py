"""LoRA adapters of requests: the first request loads one, and the least recently used is evicted."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from omnibus.checkpoints.adapter_source import AdapterSource, open_adapter
from omnibus.checkpoints.adapters import LoraAdapter
from omnibus.errors import BadRequest

_DIRECTORY_SETTING, _RANK_SETTING = "OMNIBUS_EXECUTOR_ADAPTERS_DIR", "OMNIBUS_EXECUTOR_ADAPTER_RANK"


class AdapterLimits(NamedTuple):
    """Limits of adapters that requests bring.

    ``root`` is the directory to load them from, empty for none. ``slots`` is the number in memory, ``rank`` the largest
    rank.
    """

    root: str = ""
    slots: int = 0
    rank: int = 0


NO_ADAPTERS = AdapterLimits()

#: Loads an adapter in place of the one with that number; its files have this digest.
AdapterLoad = Callable[[int, LoraAdapter, str], Awaitable[None]]


class _UsedSlot:
    """An adapter in memory, and how many requests use it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.users = 0


class AdapterSlots:
    """Adapters by the digest of their files. Their numbers start at ``first``; ``load`` is called one at a time."""

    def __init__(self, limits: AdapterLimits, first: int, load: AdapterLoad) -> None:
        self._limits = limits
        self._numbers = range(first, first + limits.slots)
        self._load = load
        self._used: OrderedDict[str, _UsedSlot] = OrderedDict()  # least recently used first
        self._loading = asyncio.Lock()
        self._released = asyncio.Event()

    def __len__(self) -> int:
        """Return the number of adapters in memory."""
        return len(self._used)

    @asynccontextmanager
    async def use(self, name: str, source: AdapterSource) -> AsyncIterator[int]:
        """Yield the number of the adapter at ``source``.

        The adapter stays in memory until the block ends. Waits while all slots are in use. ``name`` is its name in the
        request. Raises as ``open_adapter`` does, and ``BadRequest`` for an adapter that does not fit.
        """
        slot = self._used.get(source.sha256)
        if slot is None:
            async with self._loading:
                slot = self._used.get(source.sha256) or await self._load_adapter(name, source)
                slot.users += 1
        else:
            slot.users += 1
        self._used.move_to_end(source.sha256)
        try:
            yield slot.number
        finally:
            slot.users -= 1
            self._released.set()

    async def _load_adapter(self, name: str, source: AdapterSource) -> _UsedSlot:
        directory = source.path
        try:
            adapter = await asyncio.to_thread(open_adapter, name, source, self._limits.root, _DIRECTORY_SETTING)
            directory = str(adapter.directory)
            self._check_rank(adapter)
            number = await self._free_number()
            await self._load(number, adapter, source.sha256)
        except BadRequest as error:  # do not disclose paths of the machine
            raise BadRequest(f"the adapter {name!r}: {error.message.replace(directory, source.path)}") from error
        slot = self._used[source.sha256] = _UsedSlot(number)
        return slot

    def _check_rank(self, adapter: LoraAdapter) -> None:
        if adapter.rank > self._limits.rank:
            raise BadRequest(
                f"it has rank {adapter.rank}, and executors load up to {self._limits.rank}: set {_RANK_SETTING}"
            )

    async def _free_number(self) -> int:
        """Return a number that no request uses, after evicting its adapter."""
        while len(self._used) >= self._limits.slots:
            idle = next((digest for digest, slot in self._used.items() if not slot.users), None)
            if idle is not None:
                del self._used[idle]
            else:
                self._released.clear()
                await self._released.wait()
        used_numbers = {used_slot.number for used_slot in self._used.values()}
        return next(number for number in self._numbers if number not in used_numbers)
