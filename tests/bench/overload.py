"""A gateway at five times its executor's capacity: ``python -m tests.bench.overload``.

Gateway, executor loop and sidecar are real and share one process. The engine sleeps: a slow one for one second, a fast
one for 200 ms, each with two requests at a time. Settings have their defaults, except the deadline. Requests arrive at
random times, whether or not earlier ones have been answered. The figures for each engine are:

- The part of the admitted requests that ended in time.
- The 99th percentile of their latency over that of a request alone.
- The part of the rejections whose Retry-After was within half of the actual wait (or one second, its unit).
- The throughput over the engine's capacity.

The last three count requests that arrived after the first deadline. The queue can grow until then, and must be served.
"""

import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import httpx

from omnibus.executor.job_clock import current_clock
from omnibus.executor.runner import Job
from tests.bench.cases import OVERLOAD
from tests.unit.gateway.house import TEXT, ToyGateway, start_toy_gateway, write_chat_words

TIMES = 5.0  # as much as the engine bears


class OverloadEngine(NamedTuple):
    """``slots`` requests at a time, each for ``seconds``; the load lasts for ``lasts`` seconds."""

    seconds: float
    slots: int
    deadline: float
    lasts: float


ENGINES = {"slow": OverloadEngine(1.0, 2, 6.0, 26.0), "fast": OverloadEngine(0.2, 2, 2.0, 12.0)}


class OverloadAnswer(NamedTuple):
    """One answer: seconds from the start at which its request was sent and it arrived."""

    asked: float
    came: float
    status: int
    retry_after: float


async def send_request(home: ToyGateway, begin: float) -> OverloadAnswer:
    sent_at = time.monotonic() - begin
    response: httpx.Response = await home.ask(TEXT)
    retry_after = float(response.headers.get("retry-after", 0))
    return OverloadAnswer(sent_at, time.monotonic() - begin, response.status_code, retry_after)


async def offer_load(home: ToyGateway, engine: OverloadEngine) -> list[OverloadAnswer]:
    """Send requests at random times for as long as the load lasts."""
    chance, begin, tasks = random.Random(1), time.monotonic(), []
    while time.monotonic() - begin < engine.lasts:
        tasks.append(asyncio.create_task(send_request(home, begin)))
        await asyncio.sleep(chance.expovariate(TIMES * engine.slots / engine.seconds))
    return await asyncio.gather(*tasks)


async def measure_engine(name: str, engine: OverloadEngine, directory: Path) -> dict[str, float]:
    places = asyncio.Semaphore(engine.slots)

    async def run_job(job: Job) -> None:
        clock = current_clock()
        async with places:
            clock.set_now()
            await asyncio.sleep(engine.seconds)
        await write_chat_words(job)

    async with start_toy_gateway(directory, deadline=engine.deadline) as home:
        home.serve(TEXT)
        assert home.router.plan is not None
        for option, spec in home.router.plan.models[TEXT].options.items():
            id = await home.executor(TEXT, option, *spec.components, thinker=run_job)
            member = home.members.get(id)
            assert member is not None
            member.drain.slots = engine.slots  # as an executor says whose engine batches so many
        alone = [await send_request(home, 0.0) for _ in range(6)]
        answers = await offer_load(home, engine)
    base_seconds = sorted(each.came - each.asked for each in alone)[3]
    return compute_figures(name, engine, base_seconds, answers)


def compute_figures(
    name: str, engine: OverloadEngine, base_seconds: float, answers: list[OverloadAnswer]
) -> dict[str, float]:
    successes = [each for each in answers if each.status == 200]
    late = [each for each in answers if each.status not in (200, 429)]
    start_times = sorted(each.asked for each in successes)
    later = [each for each in successes if each.asked >= engine.deadline]
    refusals = [each for each in answers if each.status == 429 and each.asked >= engine.deadline]
    took = sorted(each.came - each.asked for each in later)
    end_times = [each.came for each in successes if each.came >= engine.deadline]
    print(f"{name}: {len(answers)} asked, {len(successes)} served, {len(late)} late", file=sys.stderr)
    return {
        f"overload.{name}.in_time": len(successes) / (len(successes) + len(late)),
        f"overload.{name}.p99_ratio": took[int(0.99 * (len(took) - 1))] / base_seconds,
        f"overload.{name}.retry_after": sum(_is_honest(each, start_times) for each in refusals) / len(refusals),
        f"overload.{name}.goodput": len(end_times) / (max(end_times) - engine.deadline) * engine.seconds / engine.slots,
    }


def _is_honest(refusal: OverloadAnswer, start_times: list[float]) -> bool:
    """Return whether a slot was free at about the time in Retry-After.

    Retry-After counts whole seconds.
    """
    room = next((at - refusal.asked for at in start_times if at > refusal.asked), refusal.retry_after)
    return abs(refusal.retry_after - room) <= max(1.0, room / 2)


def main() -> None:
    figures: dict[str, float] = {}
    for name, engine in ENGINES.items():
        with tempfile.TemporaryDirectory() as directory:
            figures |= asyncio.run(measure_engine(name, engine, Path(directory)))
    print(json.dumps({each: figures[each] for each in OVERLOAD}))


if __name__ == "__main__":
    main()
