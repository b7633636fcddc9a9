"""Rounds of chats to SmolLM2 on all cores, streamed and greedy, for benchmarks against other engines and builds.

It imports only what the builds before have as well.
"""

import asyncio
import contextlib
import io
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from omnibus.process.logs import Log
from omnibus.up.stack import Stack
from tests.bench.beside_vllm import build_body, send_chat

TOKENS, SLOTS, CONTEXT = 48, 8, 512
THREADS = os.cpu_count() or 1


async def send_round(port: int, at_once: int, requests: int, first: int, **more: object) -> tuple[float, float]:
    """Return tokens per second, and the median of milliseconds to the first token, of ``requests`` requests.

    ``first`` is the number of the first one; no prompt of two numbers is the same.
    """
    numbers, firsts = iter(range(first, first + requests)), []

    async def send_all() -> None:
        for number in numbers:
            body = {**json.loads(build_body(number)), "max_tokens": TOKENS, **more}
            firsts.append((await send_chat(port, json.dumps(body).encode())).first)

    start_time = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(send_all())
    seconds = time.perf_counter() - start_time
    return requests * TOKENS / seconds, 1000 * statistics.median(firsts)


@contextlib.asynccontextmanager
async def start_omnibus(checkpoint: Path, engine: str = "llama_cpp", **option: object) -> AsyncIterator[int]:
    """The port of a gateway; the system prints logs only on failure. ``option`` has more fields of the option."""
    fields = {"components": ["thinker"], "service": "llm", "engine": f"omnibus_engines:{engine}", **option}
    model = {"family": "causal_lm", "checkpoint": str(checkpoint), "context": CONTEXT, "options": {"L": fields}}
    limits = {
        "OMNIBUS_EXECUTOR_BATCH": str(SLOTS),
        "OMNIBUS_EXECUTOR_THREADS": str(THREADS),
        "OMNIBUS_EXECUTOR_PROMPT_CACHE_MIB": "0",
        "OMNIBUS_EXECUTOR_NICE": "0",  # as other servers
    }
    lines = io.StringIO()
    try:
        async with Stack(json.dumps({"models": {"tiny": model}}), env=limits, log=Log(lines)) as stack:
            yield stack.port
    except BaseException:
        print(lines.getvalue()[-8000:], file=sys.stderr)
        raise
