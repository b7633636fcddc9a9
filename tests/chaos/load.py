"""Clients of a run: good requests in sequence, some disconnects, some malicious requests, and jobs."""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import Any

import httpx

from tests.chaos import requests
from tests.chaos.attacks import SERVERS
from tests.chaos.client import error_code, open_client
from tests.chaos.client import send_request as send_one
from tests.chaos.outcome import REFUSED, ChaosOutcome, FaultEvent, Job, Record
from tests.chaos.requests import ChaosRequest
from tests.chaos.stack import VL, Stack
from tests.fuzz import hostile

_LEAVE, _POISON = 0.05, 0.04  # shares of requests
_LEAVE_SECONDS = (0.02, 1.0)
_THINK_SECONDS = (0.02, 0.2)
_REFUSED_SECONDS = 0.3
_UNDISTURBED_SECONDS = 120.0
_JOB_PAUSE_SECONDS = (4.0, 9.0)
_LOOK_SECONDS = 1.0
_PROBE_SECONDS = 60.0
_STRIDE = 1_000_000  # between the numbers of two clients


class ChaosLoad:
    """Send requests and record their outcomes.

    ``server`` is the base URL of the hostile media server; if empty, nothing hostile is sent.
    """

    def __init__(self, stack: Stack, record: Record, server: str = "") -> None:
        self._stack = stack
        self._record = record
        self._server = server
        self._urls: list[str] = stack.system.urls

    async def send_undisturbed(self) -> None:
        """Send every request once without faults, to get the reference answers."""
        if self._server:
            await asyncio.to_thread(_hostile_files)  # takes seconds, which no client is to wait for later
        for case in requests.CASES:
            end = time.monotonic() + _UNDISTURBED_SECONDS
            while not (outcome := await self.send_request(0, requests.make_good(case), 0)).is_ok:
                if time.monotonic() > end:
                    raise RuntimeError(f"undisturbed, but no answer: {outcome}")
                await asyncio.sleep(1.0)
            self._record.answers[case] = outcome

    async def client(self, number: int, until: float, draw: Callable[[Random], ChaosRequest] | None = None) -> None:
        """Send requests in sequence until the run's time is ``until``.

        Each depends only on seed and place.
        """
        step = 0
        while self._stack.elapsed_seconds < until and self._stack.is_running:
            dice = Random(f"{self._record.seed} {number} {step}")
            request = draw(dice) if draw is not None else self._draw_request(dice)
            leave = dice.uniform(*_LEAVE_SECONDS) if draw is None and dice.random() < _LEAVE else 0.0
            outcome = await self.send_request(_STRIDE * number + step, request, dice.randrange(len(self._urls)), leave)
            self._record.outcomes.append(outcome)
            await asyncio.sleep(_REFUSED_SECONDS if outcome.broken == REFUSED else dice.uniform(*_THINK_SECONDS))
            step += 1

    def _draw_request(self, dice: Random) -> ChaosRequest:
        return self.hostile(dice) if self._server and dice.random() < _POISON else requests.draw_request(dice)

    def hostile(self, dice: Random) -> ChaosRequest:
        """Choose a hostile file, a hostile body, or a hostile server's address."""
        sort = dice.random()
        if sort < 0.6:
            case = dice.choice(_hostile_files())
            return requests.make_poison(case.modality, case.data, case.name)
        if sort < 0.8:
            name = dice.choice(sorted(SERVERS))
            return requests.make_fetching(f"{self._server}/{name}.png", name)
        name = dice.choice(sorted(BODIES))
        return requests.make_raw(name, BODIES[name]())

    async def all_once(self) -> None:
        """Each case at each gateway, after everything."""
        for gateway in range(len(self._urls)):
            for number, case in enumerate(requests.CASES):
                self._record.outcomes.append(await self.send_request(-1 - number, requests.make_good(case), gateway))

    async def probe_victim(self, event: FaultEvent) -> None:
        """Send requests to the victim until it answers, to measure its recovery."""
        dice = Random(f"{self._record.seed} probe {event.number}")
        gateway = event.gateway if event.gateway >= 0 else dice.randrange(len(self._urls))
        case = dice.choice(event.cases or ("text",))
        end = self._stack.elapsed_seconds + _PROBE_SECONDS
        step = 0
        while self._stack.elapsed_seconds < end and self._stack.is_running:
            outcome = await self.send_request(-_STRIDE * (event.number + 1) - step, requests.make_good(case), gateway)
            self._record.outcomes.append(outcome)
            if outcome.is_ok:
                return
            await asyncio.sleep(_REFUSED_SECONDS)
            step += 1

    async def send_request(self, number: int, request: ChaosRequest, gateway: int, leave: float = 0.0) -> ChaosOutcome:
        return await send_one(number, request, self._urls[gateway], gateway, lambda: self._stack.elapsed_seconds, leave)

    # Jobs

    async def jobs(self, until: float) -> None:
        """Submit a video job every few seconds; poll jobs at both gateways."""
        dice = Random(f"{self._record.seed} jobs")
        due = self._stack.elapsed_seconds
        while self._stack.elapsed_seconds < until and self._stack.is_running:
            if self._stack.elapsed_seconds >= due:
                due = self._stack.elapsed_seconds + dice.uniform(*_JOB_PAUSE_SECONDS)
                await self._order_job(dice.randrange(len(self._urls)))
            await self._look_at_jobs()
            await asyncio.sleep(_LOOK_SECONDS)

    async def jobs_end(self, within: float) -> None:
        """Poll jobs until all have ended, then finally at each gateway.

        Waits at most ``within`` seconds.
        """
        end = time.monotonic() + within
        while any(not _is_over(job) for job in self._record.jobs) and time.monotonic() < end:
            await self._look_at_jobs()
            await asyncio.sleep(_LOOK_SECONDS)
        await self._look_at_jobs()

    async def _order_job(self, gateway: int) -> None:
        begin = self._stack.elapsed_seconds
        with contextlib.suppress(httpx.HTTPError):
            async with open_client(self._urls[gateway], 10) as http:
                answer = await http.post("/v1/videos", json=requests.make_video(len(self._record.jobs)))
            if answer.status_code == 200:
                self._record.jobs.append(Job(answer.json()["id"], begin))
            else:
                self._record.outcomes.append(_refused_job(answer, gateway, begin, self._stack.elapsed_seconds))

    async def _look_at_jobs(self) -> None:
        for url in self._urls:
            async with open_client(url, 10) as http:
                for job in self._record.jobs:
                    with contextlib.suppress(httpx.HTTPError, ValueError):
                        _record_state(job, await http.get(f"/v1/videos/{job.id}"), self._stack.elapsed_seconds)


def _record_state(job: Job, answer: httpx.Response, now: float) -> None:
    """Record a job's state, except for typed 5xx errors.

    They mean that store or bus is away, and contain nothing about the job.
    """
    if answer.status_code == 200:
        body: dict[str, Any] = answer.json()
        job.record_state(now, body["status"], int(body.get("completed_at") or 0))
        if error := body.get("error"):
            job.error = f"{error.get('code')}: {error.get('message')}"
    elif answer.status_code == 404:
        job.record_state(now, "not_found", 0)


def _refused_job(answer: httpx.Response, gateway: int, begin: float, end: float) -> ChaosOutcome:
    code = error_code(answer.content)
    again = "retry-after" in answer.headers
    return ChaosOutcome(
        -100, "video", gateway, begin, end, answer.status_code, code=code, retry_after=again, detail=answer.text[:300]
    )


def _is_over(job: Job) -> bool:
    return bool(job.states) and job.states[-1][1] in ("completed", "failed", "not_found")


# Hostile inputs


@lru_cache(1)
def _hostile_files() -> Sequence[hostile.Hostile]:
    return hostile.list_hostile()


def _make_field_body(name: str, value: str) -> bytes:
    return f'{{"model":"nope","messages":[{{"role":"user","content":"hi"}}],"{name}":{value}}}'.encode()


BODIES: dict[str, Callable[[], bytes]] = {
    "lists in metadata": lambda: _make_field_body("metadata", "[" + ",".join(["[]"] * 500_000) + "]"),
    "objects in tools": lambda: _make_field_body("tools", "[" + ",".join(["{}"] * 400_000) + "]"),
    "deep metadata": lambda: _make_field_body("metadata", "[" * 100_000 + "]" * 100_000),
    "a stop of a megabyte": lambda: _text_body("hi", stop="a" * (1 << 20)),
    "a text of joined signs": lambda: _text_body("\U0001f9d1\u200d" * 60_000),
    "a text of a megabyte": lambda: _text_body("cat " * 250_000),
    "no JSON": lambda: b"\xff" * 1000,
    "half a body of JSON": lambda: _text_body("hi")[:-7],
}


def _text_body(text: str, **more: str) -> bytes:
    return json.dumps({"model": VL, "messages": [{"role": "user", "content": text}], "max_tokens": 1, **more}).encode()
