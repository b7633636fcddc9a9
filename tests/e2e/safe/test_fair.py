"""Two API keys at ten to one, above capacity: both get their share.

The light one hardly notices the load. The executor simulates eight sequences at a time, about sixteen requests a
second. The test compares the two tenants in one run, and counts how many of the heavy one's requests passed one of the
light one's. It does not depend on seconds of this machine.
"""

import asyncio
import time
from collections import Counter
from typing import NamedTuple

import httpx
import pytest

from tests.e2e.safe.town import HEAVY, LIGHT, SLOTS, Town, question

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
RATES = {LIGHT: 3.0, HEAVY: 30.0}  # requests per second
SECONDS = 8.0


class Served(NamedTuple):
    began: float
    ended: float
    status: int

    @property
    def took(self) -> float:
        return self.ended - self.began


async def ask(http: httpx.AsyncClient, number: int) -> Served:
    began = time.monotonic()
    answer = await http.post(CHAT, json=question(f"count to {number}", seed=number))
    return Served(began, time.monotonic(), answer.status_code)


async def offer(closed: Town, key: str, seconds: float = SECONDS) -> list[Served]:
    """Send requests at a steady rate, without waiting for answers."""
    loop, began = asyncio.get_running_loop(), time.monotonic()
    async with closed.http(key) as http:
        asked = []
        for number in range(int(RATES[key] * seconds)):
            await asyncio.sleep(max(0.0, began + number / RATES[key] - time.monotonic()))
            asked.append(loop.create_task(ask(http, number)))
        return await asyncio.gather(*asked)


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


async def test_the_light_tenant_has_its_share_and_passes_the_heavy_ones_queue(closed: Town):
    light, heavy = await asyncio.gather(offer(closed, LIGHT), offer(closed, HEAVY))

    assert Counter(each.status for each in light) == {200: len(light)}  # all that it asked for
    done = [each for each in heavy if each.status == 200]
    assert {each.status for each in heavy} <= {200, 429}
    assert len(done) > len(light)  # and the heavy one what is left
    passed = [sum(1 for other in done if each.began < other.ended < each.ended) for each in light]
    assert median(passed) <= 2 * SLOTS  # no more than are at work and follow while it is
    behind = [each.took for each in done[len(done) // 2 :]]  # when there was a queue
    assert median(behind) > 2 * median([each.took for each in light])
