"""Requests that run all the time, through every gateway."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import httpx

from omnibus.bus import subjects
from tests.e2e.questions import ask, image
from tests.e2e.system import VL, System
from tests.e2e.watch import Watch

QUESTION = ask(image(1), "describe")
AT_ONCE = 3  # requests at each gateway


def body(content: Any = "hello", **more: Any) -> dict[str, Any]:
    return {"model": VL, "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 8, **more}


async def said(http: httpx.AsyncClient, wanted: dict[str, Any], path: str = "") -> str:
    """Text of an answer, which must be a success."""
    headers = {"x-omnibus-path": path} if path else {}
    answer = await http.post("/v1/chat/completions", json=wanted, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


@contextlib.asynccontextmanager
async def busy(system: System, gateways: Sequence[int], path: str = "") -> AsyncIterator[Counter[str]]:
    """Send one request repeatedly inside the block, and count the answers.

    Each request must succeed.
    """
    answers: Counter[str] = Counter()
    stop = asyncio.Event()

    async def worker(http: httpx.AsyncClient) -> None:
        while not stop.is_set():
            answers[await said(http, body(QUESTION.messages[0]["content"]), path)] += 1

    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(system.http(gateway)) for gateway in gateways]
        async with asyncio.TaskGroup() as group:
            for http in clients:
                for _ in range(AT_ONCE):
                    group.create_task(worker(http))
            try:
                yield answers
            finally:
                stop.set()


class Sent(NamedTuple):
    """An invocation on its way to an executor."""

    inv: str
    attempt: int
    to: str


def sent(watch: Watch) -> list[Sent]:
    """Messages from gateways to executors, in order.

    Each executor of a route gets one.
    """
    begins = f"{subjects.ROOT}.task."
    return [Sent(*subjects.parse_refused_subject(d.reply)) for d in watch.seen if d.subject.startswith(begins)]
