"""Cost of Omnibus in front of vLLM, against vLLM's own OpenAI server.

    .venv-vllm/bin/python -m tests.bench.beside_vllm

    vllm.throughput_ratio.c*   requests per second of Omnibus by those of vLLM's server, so many at once
    vllm.ttft_added_ms         how much later the first token comes, one request at a time

Both serve one tiny model with the same limits, on one thread, streamed and greedy. Rounds alternate, and the results
are medians of the rounds. The answers must be equal.
"""

import asyncio
import contextlib
import io
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import uvloop

from omnibus.process.logs import Log
from omnibus.up.ports import free_ports
from omnibus.up.stack import Stack
from omnibus_models import tiny
from tests.bench.cases import TTFT, VLLM
from tests.bench.system import PATHS

ROOT = Path(__file__).parents[2]

_MODEL = "tiny"
_ROUNDS = 3
_COUNTS = {1: 24, 8: 96, 32: 192}  # requests of a round by how many are sent at once
_TOKENS, _SLOTS, _CONTEXT, _STEP, _KV_MIB = 32, 32, 1024, 1024, 64
_START_WITHIN, _ANSWER_WITHIN = 180.0, 60.0  # seconds
_WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "the",
    "lazy",
    "dog",
    "and",
    "the",
    "small",
    "white",
    "cat",
    "sleeps",
    "on",
    "a",
    "warm",
    "red",
    "mat",
]
#: What both servers' processes find in their environment.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


class Heard(NamedTuple):
    """One answer: seconds until its first text, and until its end."""

    text: str
    first: float
    whole: float


class Round(NamedTuple):
    """``rate`` in requests per second, ``first`` in milliseconds."""

    rate: float
    first: float
    texts: dict[int, str]


def body(number: int) -> bytes:
    """A chat of 40 words; no two numbers share more than its beginning."""
    words = [_WORDS[(number * 7 + place * (1 + number % 5)) % len(_WORDS)] for place in range(40)]
    request = {
        "model": _MODEL,
        "messages": [{"role": "user", "content": f"{number} " + " ".join(words)}],
        "max_tokens": _TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
    }
    return json.dumps(request).encode()


async def ask(port: int, sent: bytes) -> Heard:
    """Send one request on a new connection and read its whole stream."""
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n"
    )
    begun, first, text = time.perf_counter(), 0.0, ""
    async with asyncio.timeout(_ANSWER_WITHIN):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.closing(writer):
            writer.write(head.encode() + sent)
            status = await reader.readline()
            if b" 200 " not in status:
                raise RuntimeError(f"{status!r}: {(await reader.read())[-500:]!r}")
            while (line := await reader.readline()).strip() != b"data: [DONE]":
                if not line:
                    raise RuntimeError("the stream did not end with [DONE]")
                said = _content(line)
                first = first or (time.perf_counter() - begun if said else 0.0)
                text += said
    return Heard(text, first, time.perf_counter() - begun)


def _content(line: bytes) -> str:
    if not line.startswith(b"data: "):
        return ""
    choices = json.loads(line[6:])["choices"]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def once(port: int, at_once: int, first: int) -> Round:
    """``_COUNTS`` requests from number ``first`` on, ``at_once`` of them at any time."""
    numbers, heard = iter(range(first, first + _COUNTS[at_once])), {}

    async def one(numbers: Iterator[int]) -> None:
        for number in numbers:
            heard[number] = await ask(port, body(number))

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(one(numbers))
    seconds = time.perf_counter() - begun
    middle = statistics.median(each.first for each in heard.values())
    return Round(len(heard) / seconds, 1000 * middle, {number: each.text for number, each in heard.items()})


@contextlib.asynccontextmanager
async def omnibus(checkpoint: Path) -> AsyncIterator[int]:
    """The port of a gateway; the system prints logs only on failure."""
    option = {"components": ["thinker"], "service": "llm", "engine": "omnibus_engines:vllm"}
    model = {
        "family": "qwen2_5_vl",
        "checkpoint": str(checkpoint),
        "encoders": {},
        "components": ["thinker"],
        "options": {"L": option},
        "paths": [{"options": ["L"]}],
    }
    limits = {
        "OMNIBUS_EXECUTOR_BATCH": str(_SLOTS),
        "OMNIBUS_EXECUTOR_CONTEXT": str(_CONTEXT),
        "OMNIBUS_EXECUTOR_THREADS": "1",
        "OMNIBUS_VLLM_KV_MIB": str(_KV_MIB),
        "OMNIBUS_VLLM_STEP_TOKENS": str(_STEP),
    }
    lines = io.StringIO()
    made = Stack(
        json.dumps({"models": {_MODEL: model}}), env={**_ENVIRONMENT, **limits}, log=Log(lines), fork_executors=False
    )
    try:
        async with made as stack:
            yield stack.port
    except BaseException:
        print(lines.getvalue()[-8000:], file=sys.stderr)
        raise


@contextlib.asynccontextmanager
async def vllm(checkpoint: Path) -> AsyncIterator[int]:
    """The port of vLLM's server."""
    (port,) = free_ports(1)
    flags = {
        "model": str(checkpoint),
        "served-model-name": _MODEL,
        "port": str(port),
        "host": "127.0.0.1",
        "dtype": "float32",
        "max-model-len": str(_CONTEXT),
        "max-num-seqs": str(_SLOTS),
        "max-num-batched-tokens": str(_STEP),
        "kv-cache-memory-bytes": str(_KV_MIB << 20),
        "block-size": "32",
        "generation-config": "vllm",
        "limit-mm-per-prompt": json.dumps({"image": 0, "video": 0}),
    }
    given = [part for name, value in flags.items() for part in (f"--{name}", value)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.vllm_server", *given, "--enforce-eager", "--disable-uvicorn-access-log"),
        cwd=ROOT,
        env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": PATHS},
        stdout=sys.stderr,
    )
    try:
        async with asyncio.timeout(_START_WITHIN):
            while not await _serves(port):
                if process.returncode is not None:
                    raise RuntimeError("vLLM's server did not start; what it says is above")
                await asyncio.sleep(0.2)
        yield port
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _serves(port: int) -> bool:
    try:
        await ask(port, body(0))
    except (OSError, asyncio.IncompleteReadError):
        return False
    return True


async def measure() -> dict[str, float]:
    """All values by name."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = tiny.build("qwen2_5_vl", Path(directory) / "vl", wide=True)
        async with omnibus(checkpoint) as ours, vllm(checkpoint) as theirs:
            starts = count(1, 1000)  # no prompt is sent twice to one server: nothing is found in a cache
            for at_once in _COUNTS:
                await _pair(ours, theirs, at_once, next(starts))
                for _ in range(_ROUNDS):
                    mine, other = await _pair(ours, theirs, at_once, next(starts))
                    found.setdefault(VLLM[at_once], []).append(mine.rate / other.rate)
                    if at_once == 1:
                        found.setdefault(TTFT, []).append(mine.first - other.first)
    return {name: round(statistics.median(values), 4) for name, values in found.items()}


async def _pair(ours: int, theirs: int, at_once: int, first: int) -> tuple[Round, Round]:
    mine, other = await once(ours, at_once, first), await once(theirs, at_once, first)
    for number, text in mine.texts.items():
        # They differ in what they say of the last bytes when those are no character.
        if text.rstrip("\ufffd") != other.texts[number].rstrip("\ufffd"):
            raise RuntimeError(f"request {number}: {text!r} is not {other.texts[number]!r}")
    print(
        f"{at_once:>3} at once: {mine.rate:7.1f} and {other.rate:7.1f} requests/s, first token after "
        f"{mine.first:6.1f} and {other.first:6.1f} ms",
        file=sys.stderr,
    )
    return mine, other


if __name__ == "__main__":
    print(json.dumps(uvloop.run(measure())))
