"""A producer and a consumer on one node with a real sidecar."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from omnibus.tensors.client import TensorClient
from omnibus_sidecar.server import Sidecar
from tests.unit.sidecar.node import connect_client, run_sidecar

HALF = 600_000


@dataclass
class ClientPair:
    """A producer and a consumer on one node."""

    sidecar: Sidecar
    producer: TensorClient
    consumer: TensorClient

    async def wait_settled(self) -> dict[str, object]:
        """Return the counters after all messages of both clients."""
        await self.producer.stats()
        return await self.consumer.stats()


@asynccontextmanager
async def open_pair(path: Path) -> AsyncIterator[ClientPair]:
    async with (
        run_sidecar(path) as sidecar,
        await connect_client(path, "producer") as producer,
        await connect_client(path, "consumer") as consumer,
    ):
        yield ClientPair(sidecar, producer, consumer)
