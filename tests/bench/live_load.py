"""Requests to a live system: replayed traces, and a closed loop at full load.

The module also measures the work of executors.
"""

import asyncio
import contextlib
import csv
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import httpx
import psutil

from omnibus.bus.messages import ExecutorStatus
from omnibus_planner.simulate.outcome import percentile
from tests.bench.plans import MIXES
from tests.e2e.planned.omni import GOLDEN, TEXT_TOKENS, chat_body, kind_of
from tests.e2e.system import System
from tests.unit.planner.simulate.omni import HEARD, SEEN, SPOKEN

#: Requests of a trace, and the part of their time that is not observed.
TRACE_REQUESTS, WARM_UP_FRACTION = 100, 0.15
ANSWER_TOKENS, ANSWER_VARIATION, MAX_TOKENS = 48, 0.3, 96
#: Requests that are answered before a full system is measured, as a factor of those in it, and those that it is measured by.
FILL_FACTOR, MEASURED_REQUESTS = 1.3, 240
#: Seconds until the first heartbeat, and times its due that a measurement may take.
_STATUS_SECONDS, _FULL_SECONDS_FACTOR = 30.0, 3.0


class TraceRow(NamedTuple):
    """One request of a trace: its arrival in seconds, its type, and its answer's tokens."""

    at: float
    kind: str
    tokens: int


class LiveAnswer(NamedTuple):
    """One answer: when its request was due and when it had ended, by one clock, and its status."""

    kind: str
    due: float
    ended: float
    status: int


class RequestNumbers:
    """Numbers of requests, each once: no two of a system are equal."""

    def __init__(self) -> None:
        self._numbers = count()

    def make_body(self, kind: str, tokens: int = 0) -> dict[str, Any]:
        return chat_body(kind, next(self._numbers), tokens)


# Traces


def make_trace(
    mix: str, rate: float, seed: int, requests: int = TRACE_REQUESTS, *, even: bool = False
) -> list[TraceRow]:
    """Requests at random or ``even`` times, with answers of random lengths."""
    draw, at, rows = random.Random(seed), 0.0, []
    for number in range(requests):
        at += 1.0 / rate if even else draw.expovariate(rate)
        rows.append(TraceRow(round(at, 4), kind_of(MIXES[mix], number), _answer_tokens(draw.gauss())))
    return rows


def _answer_tokens(deviation: float) -> int:
    """Tokens of an answer ``deviation`` standard deviations from the mean.

    Engines draw lengths in the same way.
    """
    variance = math.log1p(ANSWER_VARIATION**2)
    return max(1, min(MAX_TOKENS, round(ANSWER_TOKENS * math.exp(math.sqrt(variance) * deviation - variance / 2))))


def write_trace(rows: Sequence[TraceRow], path: Path) -> None:
    """``rows`` as ``omnibus whatif --trace`` reads them."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ("t_s", "num_images", "image_tokens", "text_tokens", "output_tokens", "has_audio", "audio_output")
        )
        for row in rows:
            images = int(row.kind == SEEN)
            audio_outputs = int(row.kind in (HEARD, SPOKEN))
            table.writerow(
                (row.at, images, 300 * images, TEXT_TOKENS[row.kind], row.tokens, int(row.kind == HEARD), audio_outputs)
            )


async def _send_chat(http: httpx.AsyncClient, body: dict[str, Any], kind: str, due: float) -> LiveAnswer:
    answer = await http.post("/v1/chat/completions", json=body)
    return LiveAnswer(kind, due, time.monotonic(), answer.status_code)


async def replay_trace(http: httpx.AsyncClient, rows: Sequence[TraceRow], numbers: RequestNumbers) -> list[LiveAnswer]:
    """Answers to ``rows``, each sent at its time."""
    began, tasks = time.monotonic() + 0.2, []
    for row in rows:
        due = began + row.at
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tasks.append(asyncio.create_task(_send_chat(http, numbers.make_body(row.kind, row.tokens), row.kind, due)))
    return await asyncio.gather(*tasks)


def observed_goodput(answers: Sequence[LiveAnswer], warm_up: float) -> float:
    """Complete answers a second, from the fraction ``warm_up`` of the arrivals until the last one."""
    first, last = min(each.due for each in answers), max(each.due for each in answers)
    warm = first + warm_up * (last - first)
    return sum(each.status == 200 and warm <= each.ended <= last for each in answers) / (last - warm)


def observed_percentile(answers: Sequence[LiveAnswer], part: float) -> float:
    """Seconds of the ``part`` percentile of answers after the warm-up.

    The 99th of a hundred is the longest.
    """
    first, last = min(each.due for each in answers), max(each.due for each in answers)
    warm = first + WARM_UP_FRACTION * (last - first)
    return percentile(sorted(each.ended - each.due for each in answers if each.due >= warm), part)


# A full system


class HeardStatus(NamedTuple):
    """A heartbeat of an executor, and its arrival time."""

    at: float
    status: ExecutorStatus


class ComponentWork(NamedTuple):
    """Work of a component in the executors of an option.

    It contains the busy part of their time, the mean sequences of a step, and the mean tokens of a pass.
    """

    busy: float
    rows: float
    tokens: float


class FullSystem(NamedTuple):
    """Measurements of a full system.

    They are answers a second, their mean tokens, statuses of all answers, and the work of each component by option.
    ``cpu`` are processors used by the system, ``client_cpu`` those of this process.
    """

    rate: float
    tokens: float
    statuses: Counter[int]
    work: Mapping[str, Mapping[str, ComponentWork]]
    cpu: float
    client_cpu: float


async def measure_full(system: System, mix: str, at_once: int, promised: float, numbers: RequestNumbers) -> FullSystem:
    """Measure ``system`` at its capacity, with ``at_once`` requests of ``mix`` in flight.

    ``rate`` is the predicted rate, in requests a second.
    """
    loop = _ClosedLoop(mix, numbers)
    limits = httpx.Limits(max_connections=None)
    async with (
        asyncio.timeout(_FULL_SECONDS_FACTOR * (FILL_FACTOR * at_once + MEASURED_REQUESTS) / promised),
        httpx.AsyncClient(base_url=system.url, timeout=None, limits=limits) as http,
        _executor_statuses(system) as statuses,
    ):
        tasks = [asyncio.create_task(loop.ask_on(http)) for _ in range(at_once)]
        try:
            await loop.wait_for_answers(round(FILL_FACTOR * at_once))
            before, count_before, tokens, began = dict(statuses), loop.answer_count, loop.tokens, time.monotonic()
            cpu = _cpu_seconds(system)
            await asyncio.sleep(MEASURED_REQUESTS / promised)
            duration = time.monotonic() - began
            loop.check()
            answers = loop.answer_count - count_before
            mean = (loop.tokens - tokens) / max(1, answers)
            cpu_shares = [(end - begin) / duration for end, begin in zip(_cpu_seconds(system), cpu, strict=True)]
            return FullSystem(answers / duration, mean, loop.statuses, option_work(before, statuses), *cpu_shares)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class _ClosedLoop:
    """A mix of requests in which each completion starts the next request.

    Answers of all lengths take turns. A few hundred with lengths drawn by engines were up to 5 % longer or shorter than
    the mean. A rejected request is retried after the time in its answer; an immediate retry would use the processors of
    the system.
    """

    def __init__(self, mix: str, numbers: RequestNumbers) -> None:
        self.statuses: Counter[int] = Counter()
        self.tokens = 0
        self._mix = mix
        self._numbers = numbers
        self._begun = count()
        self._kinds: Counter[str] = Counter()
        self._answer = asyncio.Event()
        self._failure: Exception | None = None

    @property
    def answer_count(self) -> int:
        return self.statuses[200]

    def check(self) -> None:
        """Raise the error of a request without an answer; otherwise fewer requests would be in flight."""
        if self._failure is not None:
            raise self._failure

    async def ask_on(self, http: httpx.AsyncClient) -> None:
        try:
            await self._ask_on(http)
        except httpx.HTTPError as error:
            self._failure = error
            self._answer.set()

    async def _ask_on(self, http: httpx.AsyncClient) -> None:
        while True:
            kind = kind_of(MIXES[self._mix], next(self._begun))
            self._kinds[kind] += 1
            tokens = _answer_tokens(NormalDist().inv_cdf((self._kinds[kind] - 0.5) * GOLDEN % 1))
            answer = await http.post("/v1/chat/completions", json=self._numbers.make_body(kind, tokens))
            self.statuses[answer.status_code] += 1
            self._answer.set()
            if answer.status_code == 200:
                self.tokens += answer.json()["usage"]["completion_tokens"]
            else:
                await asyncio.sleep(float(answer.headers.get("retry-after", "1")))

    async def wait_for_answers(self, count: int) -> None:
        """Raises as ``check``."""
        while self.answer_count < count:
            self._answer.clear()
            await self._answer.wait()
            self.check()


@contextlib.asynccontextmanager
async def _executor_statuses(system: System) -> AsyncIterator[dict[str, HeardStatus]]:
    """The last heartbeat of each executor, by its id."""
    latest: dict[str, HeardStatus] = {}
    first = asyncio.Event()

    async def follow_statuses() -> None:
        async with system.bus() as bus, contextlib.aclosing(system.statuses(bus)) as stream:
            async for status in stream:
                latest[status.id] = HeardStatus(time.monotonic(), status)
                first.set()

    task = asyncio.create_task(follow_statuses())
    try:
        async with asyncio.timeout(_STATUS_SECONDS):
            await first.wait()
        yield latest
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def option_work(
    before: Mapping[str, HeardStatus], after: Mapping[str, HeardStatus]
) -> dict[str, dict[str, ComponentWork]]:
    """Work of each component by option: mean of the executors with both statuses."""
    samples: dict[str, dict[str, list[ComponentWork]]] = {}
    for id, (at, status) in after.items():
        if id not in before or at <= before[id].at:
            continue
        began, first = before[id]
        for place, part in enumerate(status.components):
            busy = (status.busy[place] - first.busy[place]) / (at - began)
            counts, earlier = status.batches[place], first.batches[place]
            rows = (counts.rows - earlier.rows) / max(1, counts.steps - earlier.steps)
            tokens = (counts.tokens - earlier.tokens) / max(1, counts.passes - earlier.passes)
            samples.setdefault(status.option, {}).setdefault(part, []).append(ComponentWork(busy, rows, tokens))
    return {
        option: {
            part: ComponentWork(*(sum(column) / len(rows) for column in zip(*rows, strict=True)))
            for part, rows in parts.items()
        }
        for option, parts in samples.items()
    }


def _cpu_seconds(system: System) -> tuple[float, float]:
    """CPU seconds of the system's processes, and of this one."""
    total = 0.0
    for process in system.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total, time.process_time()
