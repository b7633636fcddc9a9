"""Streams that continue while gateways are killed: lost or repeated tokens, and pauses.

    python -m tests.bench.continued --streams 1000 --seconds 15

Simulated executors run with real gateways under ``omnibus up``. Every second one gateway is killed, if another one
answers. Its clients continue at a random gateway that did not just refuse a connection, as behind a load balancer. Each
answer is compared with the same answer of an undisturbed run.

The pause of a stream is the time from the end of its connection to the next event that is new to its client. ``again``
is the part of it until another gateway has resumed the stream. In the rest the model returns to the same position,
which takes at least one step; ``pause less a step`` excludes that step. Undisturbed, an event arrives every ``--step``
times ``--chunk`` seconds.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.e2e.small.streams import MODEL, PATH, SPOKEN, TIMES, ResumableAnswer, make_model, question_body
from tests.e2e.system import System, start_system

QUESTIONS = 50  # that differ
RETRY_SECONDS = 0.02
AVOID_SECONDS = 0.5  # for which a port that refused a connection is not tried again
GIVE_UP_SECONDS = 60.0


class BrokenStream(Exception):
    """The connection ended before the answer."""


class StreamCrowd:
    """Clients that each send the next question when they have the answer."""

    def __init__(self, system: System, answers: Sequence[ResumableAnswer], spoken: bool) -> None:
        self._ports = dict.fromkeys((int(url.rpartition(":")[2]) for url in system.urls), 0.0)  # avoided until
        self._known = answers
        self._spoken = spoken
        self.outcomes: Counter[str] = Counter()
        self.pauses: list[float] = []
        self.again: list[float] = []
        self.over = False

    async def ask_questions(self, number: int) -> None:
        while not self.over:
            await self.ask_question(number := (number + 1) % QUESTIONS)

    async def ask_question(self, number: int) -> ResumableAnswer:
        answer, broken_at, until = ResumableAnswer(), 0.0, time.monotonic() + GIVE_UP_SECONDS
        while not answer.whole and time.monotonic() < until:
            event_count = answer.events
            try:
                await self._read_answer(answer, number, broken_at)
            except (OSError, BrokenStream, asyncio.IncompleteReadError):
                if not answer.token:  # nothing was promised: from the beginning
                    answer = ResumableAnswer()
                elif not broken_at or answer.events > event_count:
                    broken_at = time.monotonic()
                await asyncio.sleep(RETRY_SECONDS)
        if self._known:
            self.outcomes[self._judge_answer(answer, self._known[number])] += 1
        return answer

    def _judge_answer(self, answer: ResumableAnswer, reference: ResumableAnswer) -> str:
        if not answer.whole:
            return f"failed: {answer.error['code'] if answer.error else 'time'}"
        return "equal" if (answer.content, answer.finished) == (reference.content, reference.finished) else "different"

    async def _read_answer(self, answer: ResumableAnswer, number: int, broken_at: float) -> None:
        reader, writer = await self._open_connection()
        try:
            writer.write(self._make_head(answer, number))
            status = int((await self._read_line(reader)).split()[1])
            while line := (await self._read_line(reader)).strip():
                name, _, value = line.partition(":")
                if name.lower() == "x-omnibus-continue":
                    answer.token = value.strip()
            if status != 200:
                self.outcomes[f"refused with {status}"] += 1
                raise BrokenStream
            if broken_at:
                self.again.append(time.monotonic() - broken_at)
            await self._read_events(reader, answer, broken_at)
        finally:
            writer.close()

    async def _open_connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        now = time.monotonic()
        port = random.choice([port for port, until in self._ports.items() if until <= now] or list(self._ports))
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            self._ports[port] = time.monotonic() + AVOID_SECONDS
            raise

    async def _read_events(self, reader: asyncio.StreamReader, answer: ResumableAnswer, broken_at: float) -> None:
        while not answer.whole and answer.error is None:
            before = answer.events
            answer.take((await self._read_line(reader)).strip())
            if broken_at and answer.events > before:
                self.pauses.append(time.monotonic() - broken_at)
                broken_at = 0.0
        if answer.error is not None:
            answer.error = None
            raise BrokenStream

    async def _read_line(self, reader: asyncio.StreamReader) -> str:
        line = await reader.readline()
        if not line:
            raise BrokenStream
        return line.decode()

    def _make_head(self, answer: ResumableAnswer, number: int) -> bytes:
        if answer.token:
            last = f"Last-Event-ID: {answer.last}\r\n" if answer.last else ""
            return f"GET {PATH}/{answer.token}/events HTTP/1.1\r\nHost: bench\r\n{last}\r\n".encode()
        body = json.dumps(streamed_question(number, self._spoken)).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: bench\r\nx-omnibus-continue: true\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body


def streamed_question(number: int, spoken: bool) -> dict[str, Any]:
    return question_body(number, stream=True, **(SPOKEN if spoken and number % 5 == 0 else {}))


async def kill_gateways(system: System, seconds: int, is_over: Callable[[], bool] = lambda: False) -> int:
    """Kill one gateway a second until ``is_over``, but never the last one."""
    kills, turn = 0, 0
    for _ in range(seconds):
        await asyncio.sleep(1)
        if is_over():
            break
        gateways = range(len(system.urls))
        ready = [each for each in gateways if (await asyncio.to_thread(system.ready, each))[0] == 200]
        if len(ready) > 1:
            turn = next((each for each in ready if each > turn), ready[0])
            (await asyncio.to_thread(system.gateway, turn)).kill()
            kills += 1
    return kills


def make_times(step: float, chunk: int) -> dict[str, Any]:
    components = {name: {**part} for name, part in TIMES["default"]["components"].items()}
    components["thinker"] |= {"step": {"base": step}, "chunk": chunk, "slots": 2048, "steps": {"mean": 40, "most": 48}}
    return {**TIMES, "default": {"components": components}}


def compute_percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


async def measure_streams(system: System, streams: int, seconds: int, spoken: bool, step: float) -> dict[str, Any]:
    await system.becomes_ready()
    alone = StreamCrowd(system, (), spoken)
    references = await asyncio.gather(*(alone.ask_question(number) for number in range(QUESTIONS)))
    crowd = StreamCrowd(system, references, spoken)
    clients = [asyncio.create_task(crowd.ask_questions(number)) for number in range(streams)]
    await asyncio.sleep(3)
    kills = await kill_gateways(system, seconds)
    crowd.over = True
    await asyncio.gather(*clients)
    figures = {"kills": kills, "continued": len(crowd.pauses), **crowd.outcomes}
    beyond = [max(0.0, pause - step) for pause in crowd.pauses]
    for name, values in (("again", crowd.again), ("pause", crowd.pauses), ("pause less a step", beyond)):
        figures |= {
            f"{name} p{int(share * 100)} ms": round(1000 * compute_percentile(values, share)) for share in (0.5, 0.99)
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--gateways", type=int, default=12)
    parser.add_argument("--step", type=float, default=0.5, help="seconds of a token")
    parser.add_argument("--chunk", type=int, default=1, help="tokens of an event")
    parser.add_argument("--text-only", action="store_true", help="no answer is spoken")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with start_system(
            directory,
            {MODEL: make_model(directory, make_times(options.step, options.chunk))},
            "--gateways",
            str(options.gateways),
            OMNIBUS_EXECUTOR_ENGINE="omnibus_engines:sim",
            OMNIBUS_EXECUTOR_CREDITS="8192",
            OMNIBUS_EXECUTOR_BATCH="2048",
            OMNIBUS_GATEWAY_MAX_INFLIGHT="8192",
        ) as system:
            figures = asyncio.run(
                measure_streams(system, options.streams, options.seconds, not options.text_only, options.step)
            )
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
