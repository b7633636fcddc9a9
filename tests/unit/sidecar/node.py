"""A node for tests: a sidecar in this loop, and real processes to kill.

python -m tests.unit.sidecar.node sidecar|producer|repeater|reader DIRECTORY
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop

from omnibus.process.spec import PACKAGE_PATH
from omnibus.tensors.client import TensorClient
from omnibus.tensors.handle import Handle
from omnibus_sidecar.server import Sidecar
from omnibus_sidecar.settings import SidecarConfig

NODE = "n1"
ROOT = Path(__file__).parents[3]
PATIENCE = 20.0  # seconds


def make_settings(directory: Path, **changes: Any) -> SidecarConfig:
    """Return settings of a sidecar with an arena of 1 MiB."""
    place = {"node": NODE, "socket": str(directory / "s"), "directory": str(directory), "arena": "arena"}
    return SidecarConfig(**{**place, "size": 1 << 20, "grace": 60.0, **changes})


@asynccontextmanager
async def run_sidecar(directory: Path, **changes: Any) -> AsyncIterator[Sidecar]:
    """Yield a started sidecar in this loop, stopped at the end."""
    sidecar = Sidecar(make_settings(directory, **changes))
    await sidecar.start()
    try:
        yield sidecar
    finally:
        await sidecar.stop()


@asynccontextmanager
async def start_process(role: str, directory: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Yield a process in ``role``; it is killed at the end if it still runs."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", __name__, role, str(directory), cwd=ROOT,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env={"PYTHONPATH": f"{PACKAGE_PATH}:{ROOT}"},
    )  # fmt: skip
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def read_line(child: asyncio.subprocess.Process) -> bytes:
    """Return the next line that ``child`` prints."""
    assert child.stdout is not None
    return (await asyncio.wait_for(child.stdout.readline(), PATIENCE)).strip()


def send_line(child: asyncio.subprocess.Process, text: bytes) -> None:
    """Send ``child`` one line."""
    assert child.stdin is not None
    child.stdin.write(text + b"\n")


async def connect_client(directory: Path, owner: str = "client", **options: Any) -> TensorClient:
    return await TensorClient.connect(str(directory / "s"), owner, NODE, **options)


async def wait_until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait for an effect of another process or the kernel."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = holds()
            if answer if isinstance(answer, bool) else await answer:
                return
            await asyncio.sleep(0.005)


def make_deadline(seconds: float = 60.0) -> float:
    return time.time() + seconds


def _print_line(text: str) -> None:
    print(text, flush=True)


async def _read_line() -> str:
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def _run_sidecar(directory: Path) -> None:
    async with run_sidecar(directory) as sidecar:
        _print_line("ready")
        await sidecar.serve()


async def _run_producer(directory: Path) -> None:
    """Print handles of a sealed and an unsealed tensor, then wait."""
    client = await connect_client(directory, "producer")
    sealed_handle = await client.put(np.full(100, 7, np.int32), invocation="i", deadline=make_deadline())
    growing = await client.allocate(100, invocation="i", deadline=make_deadline())
    await client.stats()
    _print_line(msgspec.json.encode([sealed_handle, growing.handle]).decode())
    await _read_line()


async def _run_repeater(directory: Path) -> None:
    """Put and release two tensors of one size, then wait. The process holds a spare for a third one."""
    client = await connect_client(directory, "repeater")
    for _ in range(2):
        client.release(await client.put(np.zeros(1000, np.uint8), invocation="i", deadline=make_deadline()))
        await client.stats()
    _print_line("ready")
    await _read_line()


async def _run_reader(directory: Path) -> None:
    """View the received handle, and print its sum after each line. Releases it at ``done``."""
    client = await connect_client(directory, "reader")
    handle = msgspec.json.decode(await _read_line(), type=Handle)
    array = client.view(handle)
    await client.stats()
    _print_line(str(int(array.sum())))
    while (await _read_line()).strip() != "done":
        _print_line(str(int(array.sum())))
    client.release(handle)
    await client.stats()
    _print_line("released")


if __name__ == "__main__":
    role, place = sys.argv[1:]
    roles = {"sidecar": _run_sidecar, "producer": _run_producer, "repeater": _run_repeater, "reader": _run_reader}
    uvloop.run(roles[role](Path(place)))
