"""Which executors say that they are ready, as the bus tells it."""

import asyncio
from collections.abc import Collection

from omnibus.bus import Bus, Delivery, messages, subjects
from omnibus.errors import ProtocolError


class ReadyExecutors:
    """Follows the executors' own word from ``listen`` on."""

    def __init__(self) -> None:
        self._ready: set[str] = set()
        self._news = asyncio.Event()

    async def listen(self, bus: Bus) -> None:
        await bus.subscribe(subjects.event(subjects.EXECUTOR), self._on_status)
        bus.publish(subjects.event(subjects.CENSUS), b"{}")

    def _on_status(self, delivery: Delivery) -> None:
        try:
            status = messages.decode_status(delivery.data)
        except ProtocolError:
            return  # of another build; gateways say so in their logs
        if (status.id in self._ready) != (status.state == "ready"):
            (self._ready.add if status.state == "ready" else self._ready.discard)(status.id)
            self._news.set()

    async def wait(self, executors: Collection[str], seconds: float) -> bool:
        """Whether all ``executors`` have said that they are ready, within ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                while not self._ready.issuperset(executors):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True
