"""Continuous requests of a mix, at a fixed concurrency or rate.

The mix may change. Every answer is counted.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from itertools import count

import httpx

from tests.e2e.planned.cell import MODEL, WORDS
from tests.e2e.questions import make_image, make_question
from tests.e2e.system import System

PICTURE = make_question(make_image(1, 32, 24)).messages[0]["content"][0]
GOLDEN = 0.6180339887498949  # multiples of it fill [0, 1) evenly


class MixTraffic:
    """Requests of which a share ``image_share`` has an image; ``answers`` counts statuses."""

    def __init__(self, http: httpx.AsyncClient, image_share: float) -> None:
        self.seen = image_share
        self.answers: Counter[int | str] = Counter()
        self.done: list[float] = []
        self._http = http
        self._numbers = count()

    async def ask(self) -> None:
        number = next(self._numbers)
        words = f"question {number:06d} ".ljust(4 * WORDS, ".")
        content = [PICTURE, {"type": "text", "text": words}] if number * GOLDEN % 1 < self.seen else words
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 64}
        try:
            answer = await self._http.post("/v1/chat/completions", json=body)
        except httpx.HTTPError as error:
            self.answers[repr(error)] += 1
            return
        self.answers[answer.status_code if answer.status_code == 200 else answer.text] += 1
        self.done.append(time.monotonic())

    async def rate(self, seconds: float) -> float:
        """Answers per second over the next ``seconds``."""
        began, before = time.monotonic(), len(self.done)
        await asyncio.sleep(seconds)
        return (len(self.done) - before) / (time.monotonic() - began)


@contextlib.asynccontextmanager
async def saturate_system(system: System, image_share: float, at_once: int) -> AsyncIterator[MixTraffic]:
    """Keep ``at_once`` requests in flight inside the block.

    A worker sends the next question as soon as it has its answer.
    """
    stop = asyncio.Event()

    async def send_questions(traffic: MixTraffic) -> None:
        while not stop.is_set():
            await traffic.ask()

    limits = httpx.Limits(max_connections=at_once, max_keepalive_connections=at_once)
    async with httpx.AsyncClient(base_url=system.url, timeout=60, limits=limits) as http:
        traffic = MixTraffic(http, image_share)
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(send_questions(traffic))
            try:
                yield traffic
            finally:
                stop.set()


class Pace:
    """A rate of requests a second that can change at any time."""

    def __init__(self, traffic: MixTraffic, rate: float) -> None:
        self.traffic = traffic
        self.rate = rate


@contextlib.asynccontextmanager
async def pace_requests(system: System, image_share: float, rate: float) -> AsyncIterator[Pace]:
    """Send requests without waiting for answers; at the end, wait for the last ones."""
    async with httpx.AsyncClient(base_url=system.url, timeout=60, limits=httpx.Limits(max_connections=None)) as http:
        pace = Pace(MixTraffic(http, image_share), rate)
        async with asyncio.TaskGroup() as group:

            async def send_requests() -> None:
                while True:
                    group.create_task(pace.traffic.ask())
                    await asyncio.sleep(1 / pace.rate)

            sender = group.create_task(send_requests())
            try:
                yield pace
            finally:
                sender.cancel()
