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

from tests.e2e.safe.town import HEAVY, LIGHT, SLOTS, SecuredSystem, chat_body

pytestmark = pytest.mark.e2e

CHAT = "/v1/chat/completions"
RATES = {LIGHT: 3.0, HEAVY: 30.0}  # requests per second
SECONDS = 8.0


class TenantAnswer(NamedTuple):
    began: float
    ended: float
    status: int

    @property
    def elapsed(self) -> float:
        return self.ended - self.began


async def send_question(http: httpx.AsyncClient, number: int) -> TenantAnswer:
    began = time.monotonic()
    answer = await http.post(CHAT, json=chat_body(f"count to {number}", seed=number))
    return TenantAnswer(began, time.monotonic(), answer.status_code)


async def send_steadily(system: SecuredSystem, key: str, seconds: float = SECONDS) -> list[TenantAnswer]:
    """Send requests at a steady rate, without waiting for answers."""
    loop, began = asyncio.get_running_loop(), time.monotonic()
    async with system.http(key) as http:
        tasks = []
        for number in range(int(RATES[key] * seconds)):
            await asyncio.sleep(max(0.0, began + number / RATES[key] - time.monotonic()))
            tasks.append(loop.create_task(send_question(http, number)))
        return await asyncio.gather(*tasks)


def find_median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


async def test_the_light_tenant_has_its_share_and_passes_the_heavy_ones_queue(secured_system: SecuredSystem):
    light, heavy = await asyncio.gather(send_steadily(secured_system, LIGHT), send_steadily(secured_system, HEAVY))

    assert Counter(each.status for each in light) == {200: len(light)}  # all that it asked for
    successes = [each for each in heavy if each.status == 200]
    assert {each.status for each in heavy} <= {200, 429}
    assert len(successes) > len(light)  # and the heavy one what is left
    overtake_counts = [sum(1 for other in successes if each.began < other.ended < each.ended) for each in light]
    assert find_median(overtake_counts) <= 2 * SLOTS  # no more than are at work and follow while it is
    behind = [each.elapsed for each in successes[len(successes) // 2 :]]  # when there was a queue
    assert find_median(behind) > 2 * find_median([each.elapsed for each in light])
