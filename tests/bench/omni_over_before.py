"""Text and speech of the trained omni model in a whole system, against the build of another checkout.

    python -m tests.bench.omni_over_before ../before [ROUNDS]

    engine.text_over_before.c*     answers per second by those of the build before, 8 and 16 requests at once
    engine.text_p95_over_p50.c*    time of an answer: the 95th percentile by the median
    engine.speech_over_before.c16  spoken answers per second by those of the build before, 16 at once
    speech.rtf_over_before         time of a second of speech by that of the build before, 4 answers at once

Both systems run at the same time, with one thread per executor, and take turns in short rounds. Results are medians of
the ratios of the rounds.
"""

import asyncio
import base64
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import time
import wave
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import uvloop

ROOT = Path(__file__).parents[2]
MODEL = "qwen2.5-omni-world"

_ROUNDS, _WITHIN = 7, 120.0
_TEXTS, _SPEECHES = 10, 1  # requests of a connection in a round
_TEXT, _SPEECH = {8: _TEXTS, 16: _TEXTS}, {16: _SPEECHES, 4: _SPEECHES}
_QUESTION = "What do you see and hear?"


class Round(NamedTuple):
    """Answers per second, seconds of each, and seconds of speech."""

    rate: float
    times: list[float]
    speech: float


async def serve_system() -> None:
    """Run the system of the code on ``PYTHONPATH``, print its port, and wait for the end of the input."""
    from omnibus.process.logs import Log
    from omnibus.up.stack import Stack
    from omnibus.up.tiny_models import tiny_models

    models = await tiny_models((MODEL,))
    nice = {"OMNIBUS_EXECUTOR_NICE": "0"}  # as the load; otherwise other programs decide the result
    async with Stack(models, env=nice, log=Log(io.StringIO())) as stack:
        print(stack.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


@contextlib.contextmanager
def start_system(tree: Path) -> Iterator[int]:
    """The port of a system with the code of ``tree``."""
    packages = [tree / "shared", *sorted(each.parent for each in tree.glob("services/*/omnibus_*")), ROOT]
    environ = {**os.environ, "PYTHONPATH": ":".join(map(str, packages))}
    command = (sys.executable, "-m", "tests.bench.omni_over_before", "--serve")
    with subprocess.Popen(
        command, cwd=ROOT, env=environ, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate()


def build_body(number: int, speech: bool) -> bytes:
    more = {"modalities": ["text", "audio"], "audio": {"voice": "Chelsie", "format": "wav"}} if speech else {}
    message = {"role": "user", "content": f"{number} {_QUESTION}"}
    request = {"model": MODEL, "messages": [message], "max_tokens": 12, "ignore_eos": True, "temperature": 0, **more}
    body = json.dumps(request).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@contextlib.asynccontextmanager
async def open_connection(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    with contextlib.closing(writer):
        yield reader, writer


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode().lower().split("\r\n")[1:] if line)
    body = await reader.readexactly(int(fields["content-length"]))
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise RuntimeError(body[-500:].decode())
    return body


def speech_seconds(body: bytes) -> float:
    message = json.loads(body)["choices"][0]["message"]
    with wave.open(io.BytesIO(base64.b64decode(message["audio"]["data"]))) as audio:
        return audio.getnframes() / audio.getframerate()


async def send_round(port: int, at_once: int, each: int, first: int, *, speech: bool) -> Round:
    """Send ``each`` requests on each of ``at_once`` connections, one after another."""
    times, seconds = [], 0.0

    async def send_all(number: int) -> None:
        nonlocal seconds
        async with open_connection(port) as (reader, writer):
            for place in range(each):
                begin = time.perf_counter()
                writer.write(build_body(first + number * each + place, speech))
                body = await read_answer(reader)
                times.append(time.perf_counter() - begin)
                seconds += speech_seconds(body) if speech else 0.0

    begin = time.perf_counter()
    async with asyncio.timeout(_WITHIN), asyncio.TaskGroup() as group:
        for number in range(at_once):
            group.create_task(send_all(number))
    took = time.perf_counter() - begin
    return Round(len(times) / took, times, took / seconds if speech else 0.0)


async def measure_ratios(before: int, here: int, rounds: int) -> dict[str, float]:
    """Ratios of the systems at the ports ``before`` and ``here``."""
    ratios: dict[str, float] = {}
    for speech, counts in ((False, _TEXT), (True, _SPEECH)):
        for at_once, each in counts.items():
            pairs = []
            for number in range(-2, rounds):
                first = 1000 * (number + 2)
                pairs.append([await send_round(port, at_once, each, first, speech=speech) for port in (before, here)])
            ratios |= _summarize(at_once, pairs[2:], speech)
    return ratios


def _summarize(at_once: int, pairs: list[list[Round]], speech: bool) -> dict[str, float]:
    rate = statistics.median(new.rate / old.rate for old, new in pairs)
    name = "speech" if speech else "text"
    print(name, at_once, *(f"{old.rate:.1f}/{new.rate:.1f}" for old, new in pairs), file=sys.stderr)
    if speech and at_once == 4:
        return {"speech.rtf_over_before": round(statistics.median(new.speech / old.speech for old, new in pairs), 3)}
    ratios = {f"engine.{name}_over_before.c{at_once}": round(rate, 3)}
    if not speech:
        for build, place in (("", 1), ("_before", 0)):
            spread = statistics.median(_p95_over_p50(pair[place].times) for pair in pairs)
            ratios[f"engine.text_p95_over_p50{build}.c{at_once}"] = round(spread, 3)
    return ratios


def _p95_over_p50(times: list[float]) -> float:
    parts = statistics.quantiles(times, n=20)
    return parts[18] / parts[9]


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        uvloop.run(serve_system())
    else:
        with start_system(Path(sys.argv[1]).resolve()) as before_port, start_system(ROOT) as here_port:
            rounds = int(sys.argv[2]) if len(sys.argv) > 2 else _ROUNDS
            print(json.dumps(uvloop.run(measure_ratios(before_port, here_port, rounds))))
