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


class TimedText(NamedTuple):
    """One answer: seconds until its first text, and until its end."""

    text: str
    first: float
    whole: float


class Round(NamedTuple):
    """``rate`` in requests per second, ``first`` in milliseconds."""

    rate: float
    first: float
    texts: dict[int, str]


def build_body(number: int) -> bytes:
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


async def send_chat(port: int, body: bytes) -> TimedText:
    """Send one request on a new connection and read its whole stream."""
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    start_time, first, text = time.perf_counter(), 0.0, ""
    async with asyncio.timeout(_ANSWER_WITHIN):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.closing(writer):
            writer.write(head.encode() + body)
            status = await reader.readline()
            if b" 200 " not in status:
                raise RuntimeError(f"{status!r}: {(await reader.read())[-500:]!r}")
            while (line := await reader.readline()).strip() != b"data: [DONE]":
                if not line:
                    raise RuntimeError("the stream did not end with [DONE]")
                piece = _read_content(line)
                first = first or (time.perf_counter() - start_time if piece else 0.0)
                text += piece
    return TimedText(text, first, time.perf_counter() - start_time)


def _read_content(line: bytes) -> str:
    if not line.startswith(b"data: "):
        return ""
    choices = json.loads(line[6:])["choices"]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def send_round(port: int, at_once: int, first: int) -> Round:
    """``_COUNTS`` requests from number ``first`` on, ``at_once`` of them at any time."""
    numbers, answers = iter(range(first, first + _COUNTS[at_once])), {}

    async def send_all(numbers: Iterator[int]) -> None:
        for number in numbers:
            answers[number] = await send_chat(port, build_body(number))

    start_time = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(send_all(numbers))
    seconds = time.perf_counter() - start_time
    middle = statistics.median(each.first for each in answers.values())
    return Round(len(answers) / seconds, 1000 * middle, {number: each.text for number, each in answers.items()})


@contextlib.asynccontextmanager
async def start_omnibus(checkpoint: Path) -> AsyncIterator[int]:
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
    new_stack = Stack(
        json.dumps({"models": {_MODEL: model}}), env={**_ENVIRONMENT, **limits}, log=Log(lines), fork_executors=False
    )
    try:
        async with new_stack as stack:
            yield stack.port
    except BaseException:
        print(lines.getvalue()[-8000:], file=sys.stderr)
        raise


@contextlib.asynccontextmanager
async def start_vllm(checkpoint: Path) -> AsyncIterator[int]:
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
    arguments = [part for name, value in flags.items() for part in (f"--{name}", value)]
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "tests.bench.vllm_server",
            *arguments,
            "--enforce-eager",
            "--disable-uvicorn-access-log",
        ),
        cwd=ROOT,
        env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": PATHS},
        stdout=sys.stderr,
    )
    try:
        async with asyncio.timeout(_START_WITHIN):
            while not await _is_ready(port):
                if process.returncode is not None:
                    raise RuntimeError("vLLM's server did not start; what it says is above")
                await asyncio.sleep(0.2)
        yield port
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _is_ready(port: int) -> bool:
    try:
        await send_chat(port, build_body(0))
    except (OSError, asyncio.IncompleteReadError):
        return False
    return True


async def measure_ratios() -> dict[str, float]:
    """All values by name."""
    samples: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = tiny.build("qwen2_5_vl", Path(directory) / "vl", wide=True)
        async with start_omnibus(checkpoint) as omnibus_port, start_vllm(checkpoint) as vllm_port:
            starts = count(1, 1000)  # no prompt is sent twice to one server: nothing is found in a cache
            for at_once in _COUNTS:
                await _measure_pair(omnibus_port, vllm_port, at_once, next(starts))
                for _ in range(_ROUNDS):
                    omnibus_round, other = await _measure_pair(omnibus_port, vllm_port, at_once, next(starts))
                    samples.setdefault(VLLM[at_once], []).append(omnibus_round.rate / other.rate)
                    if at_once == 1:
                        samples.setdefault(TTFT, []).append(omnibus_round.first - other.first)
    return {name: round(statistics.median(values), 4) for name, values in samples.items()}


async def _measure_pair(omnibus_port: int, vllm_port: int, at_once: int, first: int) -> tuple[Round, Round]:
    omnibus_round, other = await send_round(omnibus_port, at_once, first), await send_round(vllm_port, at_once, first)
    for number, text in omnibus_round.texts.items():
        # They differ in what they say of the last bytes when those are no character.
        if text.rstrip("\ufffd") != other.texts[number].rstrip("\ufffd"):
            raise RuntimeError(f"request {number}: {text!r} is not {other.texts[number]!r}")
    print(
        f"{at_once:>3} at once: {omnibus_round.rate:7.1f} and {other.rate:7.1f} requests/s, first token after "
        f"{omnibus_round.first:6.1f} and {other.first:6.1f} ms",
        file=sys.stderr,
    )
    return omnibus_round, other


if __name__ == "__main__":
    print(json.dumps(uvloop.run(measure_ratios())))
