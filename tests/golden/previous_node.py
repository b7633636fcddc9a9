"""A node of the previous build as a process: its sidecar and clients.

    PYTHONPATH=releases/previous_sidecar.zip python previous_node.py DIRECTORY

runs the code of that build, which ``zip_previous.py`` has put into the archive. Clients connect to its own and other
sidecars. Each input line is a command: a JSON list whose first element is a name of ``COMMANDS``. The process answers
each by one line.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from services.sidecar.peers.dialler import PeerAddress
from services.sidecar.server import Sidecar
from services.sidecar.settings import PeerConfig, SidecarConfig

import omnibus.tensors.client
from omnibus.tensors.client import TensorClient
from omnibus.tensors.handle import Handle

SECONDS = 60.0
INVOCATION = "i"


class PreviousNode:
    """Run commands one after another."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sidecar: Sidecar | None = None
        self._client: TensorClient | None = None

    @property
    def client(self) -> TensorClient:
        assert self._client is not None
        return self._client

    async def serve(self, name: str, secret: str) -> dict[str, int]:
        """Start the sidecar of node ``name``; return its address for other nodes."""
        peers = PeerConfig(host="127.0.0.1", secret=secret.encode())
        socket, size = str(self._directory / "s"), 1 << 22
        self._sidecar = Sidecar(
            SidecarConfig(
                node=name, socket=socket, directory=str(self._directory), arena="arena", size=size, peers=peers
            )
        )
        await self._sidecar.start()
        assert self._sidecar.peers is not None
        return {"port": self._sidecar.peers.port, "boot": self._sidecar.peers.boot}

    async def meet(self, name: str, port: int, boot: int) -> None:
        """Set the address of node ``name``."""
        assert self._sidecar is not None
        assert self._sidecar.peers is not None
        self._sidecar.peers.addresses[name] = PeerAddress("127.0.0.1", port, boot)

    async def connect(self, socket: str, name: str) -> None:
        """Become a client of the sidecar of node ``name``."""
        self._client = await TensorClient.connect(socket, "previous", name)

    async def put(self, values: list[float], readers: int = 1) -> Any:
        array = np.array(values, np.float32)
        handle = await self.client.put(array, invocation=INVOCATION, deadline=time.time() + SECONDS, readers=readers)
        return msgspec.to_builtins(handle)

    async def read(self, handle: dict[str, Any]) -> list[float]:
        """Return the values of any node's tensor, and release its lease."""
        lease = msgspec.convert(handle, Handle)
        array = await self.client.open_tensor(lease, invocation=INVOCATION, deadline=time.time() + SECONDS)
        values = [float(value) for value in array]
        self.client.release(lease)
        return values

    async def retain(self, handle: dict[str, Any]) -> None:
        self.client.retain(msgspec.convert(handle, Handle))

    async def drop(self, handle: dict[str, Any]) -> None:
        self.client.drop(msgspec.convert(handle, Handle))

    async def end(self) -> None:
        self.client.end_invocation(INVOCATION)

    async def blocks(self) -> int:
        """Leased blocks of this client's sidecar."""
        return int((await self.client.stats())["blocks"])


COMMANDS = ("serve", "meet", "connect", "put", "read", "retain", "drop", "end", "blocks")


async def main(directory: Path) -> None:
    node, loop = PreviousNode(directory), asyncio.get_running_loop()
    print(json.dumps(omnibus.tensors.client.__file__), flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        name, *arguments = json.loads(line)
        assert name in COMMANDS
        print(json.dumps(await getattr(node, name)(*arguments)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
