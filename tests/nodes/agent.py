"""A client of a node's sidecar that executes lines of JSON.

    python -m tests.nodes.agent SOCKET NODE OWNER

    {"id": 1, "do": "put", "nbytes": 1000, "value": 7, "invocation": "i"}   ->   {"id": 1, "handle": {...}}
    {"id": 2, "do": "open", "handle": {...}, "invocation": "i"}             ->   {"id": 2, "counts": {"7": 1000}}

Lines run concurrently. An error is answered as ``{"id": 3, "error": code, "message": text}``.
"""

import asyncio
import os
import sys
import time
from typing import Any

import msgspec
import numpy as np
import uvloop

from omnibus.errors import OmnibusError
from omnibus.tensors.client import TensorClient
from omnibus.tensors.handle import Handle

_MAX_LINE_BYTES = 1 << 20
_SECONDS = 60.0  # of a deadline that is not given


class Agent:
    """The commands; ``seconds`` is the time until the deadline."""

    def __init__(self, client: TensorClient) -> None:
        self._client = client

    async def put(
        self, nbytes: int, value: int, invocation: str, seconds: float = _SECONDS, readers: int = 1, wait: float = 1.0
    ) -> dict[str, Any]:
        """A sealed tensor of ``nbytes`` bytes that are all ``value``."""
        block = await self._client.allocate(
            nbytes, invocation=invocation, deadline=time.time() + seconds, readers=readers, wait=wait
        )
        block.array[:] = value
        return {"handle": msgspec.to_builtins(block.seal())}

    async def open(
        self, handle: dict[str, Any], invocation: str, seconds: float = _SECONDS, count: bool = True
    ) -> dict[str, Any]:
        """Open a tensor for reading and count bytes by value.

        Only the size is returned if ``count`` is false.
        """
        tensor = await self._client.open_tensor(
            msgspec.convert(handle, Handle), invocation=invocation, deadline=time.time() + seconds
        )
        return {"counts": _count_bytes(tensor)} if count else {"nbytes": tensor.nbytes}

    async def view(self, handle: dict[str, Any]) -> dict[str, Any]:
        """The same of a tensor of this node."""
        return {"counts": _count_bytes(self._client.view(msgspec.convert(handle, Handle)))}

    async def release(self, handle: dict[str, Any]) -> dict[str, Any]:
        self._client.release(msgspec.convert(handle, Handle))
        return {}

    async def end(self, invocation: str) -> dict[str, Any]:
        self._client.end_invocation(invocation)
        return {}

    async def stats(self) -> dict[str, Any]:
        return {"stats": await self._client.stats()}

    async def lag(self, count: int) -> dict[str, Any]:
        """99th percentile of the sidecar's response time in seconds.

        ``count`` calls are sent 5 ms apart.
        """
        seconds = []
        for _ in range(count):
            began = time.perf_counter()
            await self._client.stats()
            seconds.append(time.perf_counter() - began)
            await asyncio.sleep(0.005)
        return {"p99": sorted(seconds)[int(0.99 * count)]}

    async def ledger(self) -> dict[str, Any]:
        return {"ledger": await self._client.ledger()}

    async def wait_ready(self) -> dict[str, Any]:
        """Wait until the sidecar, which may have been restarted, is ready."""
        await self._client.wait_ready(20.0)
        return {}

    async def shared_files(self) -> dict[str, Any]:
        """Files in this node's shared memory, and this process's id."""
        return {"files": sorted(os.listdir("/dev/shm")), "pid": os.getpid()}


def _count_bytes(array: np.ndarray) -> dict[str, int]:
    counts = np.bincount(array.reshape(-1), minlength=256)
    return {str(value): int(count) for value, count in enumerate(counts) if count}


async def _serve_line(agent: Agent, line: bytes) -> None:
    request = msgspec.json.decode(line)
    id, do = request.pop("id"), request.pop("do")
    try:
        answer = await getattr(agent, do)(**request)
    except OmnibusError as error:
        answer = {"error": error.code, "message": error.message}
    sys.stdout.buffer.write(msgspec.json.encode({"id": id, **answer}) + b"\n")
    sys.stdout.buffer.flush()


async def main(socket_path: str, node: str, owner: str) -> None:
    """Serve lines until the end of the input."""
    reader = asyncio.StreamReader(limit=_MAX_LINE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with (
        await TensorClient.connect(socket_path, owner, node, timeout=20.0) as client,
        asyncio.TaskGroup() as work,
    ):
        agent = Agent(client)
        async for line in reader:
            work.create_task(_serve_line(agent, line))


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
