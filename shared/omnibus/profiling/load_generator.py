"""Closed loop that keeps requests in flight, and its results.

Each request that ends starts the next one.
"""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from itertools import accumulate, count
from typing import NamedTuple

import msgspec
import numpy as np

from omnibus.errors import BadRequest, Rejected
from omnibus.profile import Point
from omnibus.profiling.client import Client, TimedAnswer
from omnibus.profiling.workload import WorkloadRequest

#: Multiples of it fill [0, 1) evenly.
GOLDEN = 0.6180339887498949
#: Part of a step's seconds that passes before anything counts.
WARMUP_FRACTION = 0.25
#: A step ends after so many times its seconds, however few requests have ended.
MAX_DURATION_FACTOR = 20.0


class LoadStep(msgspec.Struct, frozen=True):
    """Length of a step: ``seconds`` at least, and until ``requests`` have ended."""

    seconds: float
    requests: int


class LoadRequest(NamedTuple):
    """A request on a path.

    ``short`` requests have an answer of one token. ``paces`` marks requests that define the rate. Requests that skip an
    option end early, while the others queue for it. Counting them would overstate the rate for a while.
    """

    request: WorkloadRequest
    path: str = ""
    short: bool = False
    paces: bool = True

    @property
    def body(self) -> bytes:
        return self.request.short if self.short else self.request.body


class LoadResult(NamedTuple):
    """Requests that ended in a step, and their ``rate`` per second.

    ``others`` ended before the step was warm, or after it.
    """

    at_once: int
    rate: float
    answers: list[tuple[LoadRequest, TimedAnswer]]
    others: Sequence[tuple[LoadRequest, TimedAnswer]] = ()

    def to_point(self) -> Point:
        answers = [answer for _, answer in self.answers]
        end_times = sorted(answer.done for answer in answers)
        return Point(
            at_once=self.at_once,
            rate=self.rate,
            done=_p99(end_times),
            median=end_times[(len(end_times) - 1) // 2],
            first_token=_p99([each.first_token for each in answers if each.first_token]),
            token=_p99([gap for each in answers for gap in each.gaps]),
            first_audio=_p99([each.first_audio for each in answers if each.first_audio]),
            real_time=_p99([each.real_time for each in answers if each.spoken]),
        )


class ClosedLoop:
    """Keeps ``at_once`` requests of ``orders`` in flight, by their shares."""

    def __init__(self, port: int, orders: Sequence[LoadRequest], at_once: int) -> None:
        self._port = port
        self._orders = orders
        self._marks = list(accumulate(order.request.share for order in orders))
        self._numbers = count()
        self._at_once = at_once
        self._ended: list[tuple[float, LoadRequest, TimedAnswer]] = []
        self._news = asyncio.Event()
        self._begun = 0
        self._warm_at = math.inf  # the first time that each client had an answer

    async def run(self, step: LoadStep, between: Callable[[], Awaitable[None]]) -> LoadResult:
        """Run one step. Calls ``between`` at its beginning, once it is warm, and at its end, under load.

        Raises the first request's error.
        """
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(Client(self._port)) for _ in range(self._at_once)]
            workers = [asyncio.ensure_future(self._run_client(client)) for client in clients]
            watch = asyncio.ensure_future(self._watch_step(step, between))
            try:
                await asyncio.wait({watch, *workers}, return_when=asyncio.FIRST_COMPLETED)
                for worker in workers:
                    if worker.done():
                        worker.result()
                return await watch
            finally:
                for task in (watch, *workers):
                    task.cancel()
                await asyncio.gather(watch, *workers, return_exceptions=True)

    async def _run_client(self, client: Client) -> None:
        first = True
        while True:
            order = self._next_request()
            try:
                target = order.request.target
                answer = await (
                    client.call_app(target, order.body) if target else client.send_chat(order.body, order.path)
                )
            except Rejected as error:
                raise BadRequest(f"{order.request.where} of the workload is rejected: {error.message}") from error
            self._ended.append((time.monotonic(), order, answer))
            self._begun += first
            if first and self._begun == self._at_once:
                self._warm_at = len(self._ended) - 1
            first = False
            self._news.set()

    def _next_request(self) -> LoadRequest:
        place = next(self._numbers) * GOLDEN % 1.0 * self._marks[-1]
        return next(order for order, mark in zip(self._orders, self._marks, strict=True) if place < mark)

    async def _watch_step(self, step: LoadStep, between: Callable[[], Awaitable[None]]) -> LoadResult:
        finished_requests = self._ended
        warm = time.monotonic() + WARMUP_FRACTION * step.seconds
        first = await self._wait_for_index(lambda at: at >= self._warm_at and finished_requests[at][0] >= warm)
        await between()
        begin = finished_requests[first][0]
        least, lasts, last = (
            max(step.requests, 2 * self._at_once),
            begin + step.seconds,
            begin + MAX_DURATION_FACTOR * step.seconds,
        )
        end = await self._wait_for_index(
            lambda at: (
                at > first
                and finished_requests[at][0] >= lasts
                and (at - first >= least or finished_requests[at][0] >= last)
            )
        )
        await between()
        window = finished_requests[first : end + 1]
        return LoadResult(
            self._at_once,
            self._mix_rate([(at, order) for at, order, _ in window]),
            [(order, answer) for _, order, answer in window[1:]],
            [(order, answer) for _, order, answer in (*finished_requests[: first + 1], *finished_requests[end + 1 :])],
        )

    def _mix_rate(self, finished_requests: Sequence[tuple[float, LoadRequest]]) -> float:
        """Return requests per second of the mix, from those that ``pace`` it."""
        end_times = [at for at, order in finished_requests if order.paces]
        share = sum(order.request.share for order in self._orders if order.paces) / self._marks[-1]
        return (
            request_rate(end_times) / share if len(end_times) > 2 else request_rate([at for at, _ in finished_requests])
        )

    async def _wait_for_index(self, true: Callable[[int], bool]) -> int:
        """Wait until requests have ended; return the index of the first for which ``true`` holds."""
        at = 0
        while True:
            while at < len(self._ended):
                if true(at):
                    return at
                at += 1
            self._news.clear()
            await self._news.wait()


def request_rate(ends: Sequence[float]) -> float:
    """Return requests per second, given the times at which they ended.

    The rate is the slope of the line through these times. It hardly depends on whether the first and the last batch
    were complete.
    """
    numbers = np.arange(len(ends)) - (len(ends) - 1) / 2
    slope = float(numbers @ (np.array(ends) - ends[0])) / float(numbers @ numbers)
    return 1.0 / max(slope, 1e-9)


def mean_quantities(answers: Sequence[tuple[LoadRequest, TimedAnswer]]) -> dict[str, dict[str, float]]:
    """Return mean quantities per request type, as reported in the answers."""
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for order, answer in answers:
        own = sums[order.request.kind]
        own["requests"] += 1
        for name, value in request_quantities(order.request, answer).items():
            own[name] += value
    return {
        kind: {name: total / own["requests"] for name, total in own.items() if name != "requests" and total}
        for kind, own in sums.items()
    }


def request_quantities(request: WorkloadRequest, answer: TimedAnswer) -> dict[str, float]:
    """Return the quantities of one request and its answer.

    An answer's image tokens include those of videos. For a request with both, all count as image tokens.
    """
    usage = answer.usage
    prompt, completion = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    visual_tokens = float(prompt.get("image_tokens", 0))
    has_video = "video" in request.media and "image" not in request.media
    return {
        "prompt_tokens": float(usage.get("prompt_tokens", 0)),
        "completion_tokens": float(completion.get("text_tokens", 0)),
        "image_tokens": 0.0 if has_video else visual_tokens,
        "video_tokens": visual_tokens if has_video else 0.0,
        "audio_tokens": float(prompt.get("audio_tokens", 0)),
        "speech_seconds": answer.speech,
    }


def _p99(values: Sequence[float]) -> float:
    sorted_values = sorted(values)
    return sorted_values[math.ceil(0.99 * len(sorted_values)) - 1] if sorted_values else 0.0
