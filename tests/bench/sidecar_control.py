"""CPU cost of moving one small tensor: allocate, seal, hold and release.

    python -m tests.bench.sidecar_control

It uses a real sidecar. The result is CPU milliseconds per transfer of 4 KiB. It is the sum over the sidecar's process
and that of its two clients (a producer and a consumer). CPU, unlike latency, hardly depends on the neighbours.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import uvloop

from omnibus.tensors.client import TensorClient

TRANSFERS = 5000
NBYTES = 4096

_SIDECAR = """
import asyncio, sys, uvloop
from omnibus_sidecar.server import Sidecar
from omnibus_sidecar.settings import SidecarConfig

async def main(directory):
    sidecar = Sidecar(SidecarConfig(node="bench", socket=directory + "/s", arena="arena", directory=directory))
    await sidecar.start()
    print("ready", flush=True)
    await sidecar.serve()

uvloop.run(main(sys.argv[1]))
"""


async def _transfer_tensors(producer: TensorClient, consumer: TensorClient, count: int) -> None:
    deadline = time.time() + 60
    for _ in range(count):
        block = await producer.allocate(NBYTES, invocation="bench", deadline=deadline)
        handle = block.seal()
        consumer.view(handle)
        consumer.release(handle)


async def _run_transfers(socket_path: str, concurrency: int, sidecar: psutil.Process) -> float:
    async with (
        await TensorClient.connect(socket_path, owner="producer", node="bench") as producer,
        await TensorClient.connect(socket_path, owner="consumer", node="bench") as consumer,
    ):
        await _transfer_tensors(producer, consumer, 200)
        before = _cpu_seconds(sidecar) + time.process_time()
        share = TRANSFERS // concurrency
        await asyncio.gather(*(_transfer_tensors(producer, consumer, share) for _ in range(concurrency)))
        stats = await producer.stats()
        cpu_seconds = _cpu_seconds(sidecar) + time.process_time() - before
    if stats["granted_total"] < share * concurrency:
        raise RuntimeError(f"only {stats['granted_total']} transfers happened")
    return 1000 * cpu_seconds / (share * concurrency)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def measure_transfers() -> dict[str, float]:
    """CPU ms per transfer, sequential (``sidecar.control_ms``) and 16 concurrent (``..._c16``)."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        process = subprocess.Popen(
            [sys.executable, "-c", _SIDECAR, directory], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
        )
        try:
            assert process.stdout is not None
            if process.stdout.readline() != b"ready\n":
                raise RuntimeError("the sidecar did not start")
            sidecar, path = psutil.Process(process.pid), directory + "/s"
            alone = min(uvloop.run(_run_transfers(path, 1, sidecar)) for _ in range(3))
            crowd = min(uvloop.run(_run_transfers(path, 16, sidecar)) for _ in range(3))
        finally:
            process.kill()
            process.wait(10)
    return {"sidecar.control_ms": round(alone, 4), "sidecar.control_ms_c16": round(crowd, 4)}


if __name__ == "__main__":
    print(json.dumps(measure_transfers()))
