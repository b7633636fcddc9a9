"""Two connected nodes for tests: two sidecars in this loop, and a client at each."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnibus.tensors.client import TensorClient
from omnibus_sidecar.peers.dialler import PeerAddress
from omnibus_sidecar.peers.plane import PeerPlane
from omnibus_sidecar.server import Sidecar
from omnibus_sidecar.settings import PeerConfig, SidecarConfig

SECRET = b"the same for all nodes"


@dataclass
class PeerNode:
    """One sidecar, with its directory in place of ``/dev/shm``."""

    name: str
    directory: Path
    sidecar: Sidecar

    async def client(self, owner: str = "client") -> TensorClient:
        return await TensorClient.connect(str(self.directory / "s"), owner, self.name)

    @property
    def plane(self) -> PeerPlane:
        assert self.sidecar.peers is not None
        return self.sidecar.peers

    @property
    def blocks(self) -> int:
        """The number of leased blocks."""
        return int(self.sidecar.snapshot()["blocks"])

    @property
    def counters(self) -> dict[str, Any]:
        return self.sidecar.snapshot()


def peer_config(**changes: Any) -> PeerConfig:
    return PeerConfig(**{"host": "127.0.0.1", "secret": SECRET, **changes})


async def start_node(name: str, directory: Path, peers: PeerConfig, size: int = 1 << 22, **changes: Any) -> PeerNode:
    """Return a started sidecar ``name`` with its arena in ``directory``."""
    place = directory / name
    place.mkdir(exist_ok=True)
    config = SidecarConfig(
        node=name, socket=str(place / "s"), directory=str(place), arena="arena", size=size, peers=peers, **changes
    )
    sidecar = Sidecar(config)
    await sidecar.start()
    return PeerNode(name, place, sidecar)


def introduce_nodes(*nodes: PeerNode) -> None:
    """Give every node the addresses of all others."""
    for node in nodes:
        for other in nodes:
            if other is not node:
                address = PeerAddress("127.0.0.1", other.plane.port, other.plane.boot)
                node.plane.addresses[other.name] = address


@asynccontextmanager
async def two_nodes(directory: Path, size: int = 1 << 22, **changes: Any) -> AsyncIterator[tuple[PeerNode, PeerNode]]:
    """Yield nodes ``a`` and ``b`` and stop them at the end; ``changes`` apply to their ``PeerConfig``."""
    async with AsyncExitStack() as stack:
        nodes = []
        for name in ("a", "b"):
            node = await start_node(name, directory, peer_config(**changes), size)
            stack.push_async_callback(node.sidecar.stop)
            nodes.append(node)
        introduce_nodes(*nodes)
        yield nodes[0], nodes[1]
