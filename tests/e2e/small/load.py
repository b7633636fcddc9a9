"""Requests that run all the time, through every gateway."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

import httpx

from omnibus.bus import subjects
from tests.e2e.questions import make_image, make_question
from tests.e2e.system import VL, System
from tests.e2e.watch import Watch

QUESTION = make_question(make_image(1), "describe")
AT_ONCE = 3  # requests at each gateway


def make_body(content: Any = "hello", **more: Any) -> dict[str, Any]:
    return {"model": VL, "messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 8, **more}


async def send_chat(http: httpx.AsyncClient, request_body: dict[str, Any], path: str = "") -> str:
    """Text of an answer, which must be a success."""
    headers = {"x-omnibus-path": path} if path else {}
    answer = await http.post("/v1/chat/completions", json=request_body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


@contextlib.asynccontextmanager
async def keep_busy(system: System, gateways: Sequence[int], path: str = "") -> AsyncIterator[Counter[str]]:
    """Send one request repeatedly inside the block, and count the answers.

    Each request must succeed.
    """
    answers: Counter[str] = Counter()
    stop = asyncio.Event()

    async def send_requests(http: httpx.AsyncClient) -> None:
        while not stop.is_set():
            answers[await send_chat(http, make_body(QUESTION.messages[0]["content"]), path)] += 1

    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(system.http(gateway)) for gateway in gateways]
        async with asyncio.TaskGroup() as group:
            for http in clients:
                for _ in range(AT_ONCE):
                    group.create_task(send_requests(http))
            try:
                yield answers
            finally:
                stop.set()


class SentTask(NamedTuple):
    """An invocation on its way to an executor."""

    inv: str
    attempt: int
    to: str


def list_sent_tasks(watch: Watch) -> list[SentTask]:
    """Messages from gateways to executors, in order.

    Each executor of a route gets one.
    """
    begins = f"{subjects.ROOT}.task."
    return [SentTask(*subjects.parse_refused_subject(d.reply)) for d in watch.seen if d.subject.startswith(begins)]
