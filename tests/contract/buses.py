"""Helpers that the tests of the bus contract share."""

import asyncio

from omnibus.bus import Bus, Delivery

LIMIT = 1000  # bytes
PATIENCE = 10.0  # seconds


class DeliveryCollector:
    """Collects deliveries; ``await heard.until(3)`` waits for the third."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self._news = asyncio.Event()

    def __call__(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        self._news.set()

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.data for delivery in self.deliveries]

    async def wait_for_count(self, count: int) -> list[bytes]:
        async with asyncio.timeout(PATIENCE):
            while len(self.deliveries) < count:
                self._news.clear()
                await self._news.wait()
        return self.bodies


async def wait_until_delivered(bus: Bus) -> None:
    """Wait until everything published before has been delivered."""
    mark = DeliveryCollector()
    stop = await bus.subscribe("settled", mark)
    bus.publish("settled", b"")
    await mark.wait_for_count(1)
    await stop()
