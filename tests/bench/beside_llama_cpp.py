"""Omnibus on llama.cpp, against llama.cpp's own server.

    python -m tests.bench.beside_llama_cpp

    llama.tokens_over_server.c*   tokens per second of Omnibus by those of the server, so many answers at once
    llama.ttft_added_ms           how much later the first token comes, one request at a time
    llama.memory_ratio            resident memory of the executor by that of the server
    laptop.tokens_over_transformers.c1   tokens per second of Omnibus by those of its engine ``transformers``

All serve SmolLM2-135M-Instruct in Q4_1 (``make install-weights``) on all cores, streamed and greedy, with as many slots
and the same context. Rounds alternate, except those of ``transformers``, which follow. The results are medians of the
rounds.
"""

import asyncio
import contextlib
import json
import os
import statistics
import sys
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import psutil
import uvloop

from omnibus.checkpoints.packaged import find_packaged
from omnibus.up.ports import free_ports
from tests.bench.beside_vllm import build_body, send_chat
from tests.bench.cases import LAPTOP, LLAMA, LLAMA_MEMORY, LLAMA_TTFT
from tests.bench.laptop import CONTEXT, SLOTS, THREADS, send_round, start_omnibus
from tests.bench.system import PATHS

ROOT = Path(__file__).parents[2]

_ROUNDS = 3
_COUNTS = {1: 4, 4: 8, 8: 16}  # requests of a round by how many are sent at once
_START_WITHIN = 180.0  # seconds


@contextlib.asynccontextmanager
async def start_server(file: Path) -> AsyncIterator[tuple[int, psutil.Process]]:
    """The port and the process of llama.cpp's server."""
    (port,) = free_ports(1)
    arguments = [port, file, SLOTS, CONTEXT, THREADS]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.llama_cpp_server", *map(str, arguments)),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": PATHS},
        stdout=sys.stderr,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(_START_WITHIN):
            while not await _is_ready(port):
                if process.returncode is not None:
                    raise RuntimeError("llama.cpp's server did not start")
                await asyncio.sleep(0.2)
        yield port, psutil.Process(process.pid)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _is_ready(port: int) -> bool:
    try:
        await send_chat(port, build_body(0))
    except (OSError, RuntimeError, asyncio.IncompleteReadError):
        return False
    return True


def _executor_bytes(server: psutil.Process) -> int:
    """Return the resident bytes of the largest process of the system, which has the model."""
    processes = [each for each in psutil.Process().children(recursive=True) if each.pid != server.pid]
    return max(each.memory_info().rss for each in processes)


async def measure_ratios() -> dict[str, float]:
    """All values by name."""
    file = find_packaged("smollm2")
    samples: dict[str, list[float]] = {}
    own_rates = []  # one request at a time
    async with start_omnibus(file) as port, start_server(file) as (server_port, server):
        starts = count(1, 1000)  # no prompt is sent twice to one server: nothing is found in a cache
        for at_once, requests in _COUNTS.items():
            for number in range(_ROUNDS + 1):
                first = next(starts)
                own_rate, own_first = await send_round(port, at_once, requests, first)
                rate, other_first = await send_round(server_port, at_once, requests, first, cache_prompt=False)
                if number:  # the first round warms up
                    samples.setdefault(LLAMA[at_once], []).append(own_rate / rate)
                    print(
                        at_once, round(own_rate, 1), round(rate, 1), round(own_first - other_first, 1), file=sys.stderr
                    )
                    if at_once == 1:
                        own_rates.append(own_rate)
                        samples.setdefault(LLAMA_TTFT, []).append(own_first - other_first)
        samples[LLAMA_MEMORY] = [_executor_bytes(server) / server.memory_info().rss]
    async with start_omnibus(
        file, "transformers"
    ) as port:  # after the other one: systems of one process share an arena
        rates = [(await send_round(port, 1, _COUNTS[1], next(starts)))[0] for _ in range(_ROUNDS + 1)]
    samples[LAPTOP] = [statistics.median(own_rates) / statistics.median(rates[1:])]
    return {name: round(statistics.median(values), 4) for name, values in samples.items()}


if __name__ == "__main__":
    print(json.dumps(uvloop.run(measure_ratios())))
