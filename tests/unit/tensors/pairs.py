"""A producer and a consumer on one node with a real sidecar."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from omnibus.tensors.client import TensorClient
from omnibus_sidecar.server import Sidecar
from tests.unit.sidecar.node import connect, running

HALF = 600_000


@dataclass
class Pair:
    """A producer and a consumer on one node."""

    sidecar: Sidecar
    producer: TensorClient
    consumer: TensorClient

    async def settle(self) -> dict[str, object]:
        """Return the counters after all messages of both clients."""
        await self.producer.stats()
        return await self.consumer.stats()


@asynccontextmanager
async def pairs(path: Path) -> AsyncIterator[Pair]:
    async with (
        running(path) as sidecar,
        await connect(path, "producer") as producer,
        await connect(path, "consumer") as consumer,
    ):
        yield Pair(sidecar, producer, consumer)
