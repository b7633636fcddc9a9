"""Requests change from images to text and back: the plan follows, serves what it promises, and no request fails."""

import asyncio

import pytest

from omnibus.plan import Plan
from omnibus.store import Store
from tests.e2e.planned.cell import SEEN, TEXT
from tests.e2e.planned.conftest import GPUS, Planned
from tests.e2e.planned.load import Traffic, saturating
from tests.e2e.planned.settled import Places, capacity, followed, replicas, settled
from tests.e2e.system import System

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

IMAGES, WORDS = 0.8, 0.2  # shares of requests with an image
AT_ONCE = 96
SETTLES, SECONDS = 4.0, 8.0  # until requests of the old mix are gone; of one measurement
LOOKS = 3  # measurements at most


async def test_the_plan_follows_the_mix_and_serves_what_it_promises(planned: Planned):
    with planned(mix={SEEN: IMAGES, TEXT: 1 - IMAGES}) as system:
        async with system.store() as store, saturating(system, IMAGES, AT_ONCE) as traffic, Places.of(system) as places:
            first = await promised(system, store, traffic)
            traffic.seen = WORDS
            second = await promised(system, store, traffic, after=first.epoch)
            traffic.seen = IMAGES
            third = await promised(system, store, traffic, after=second.epoch)
            reasons = await followed(store)

    assert set(traffic.answers) == {200}
    assert len(reasons) == 2, reasons
    assert sum(replicas(first).values()) == places.most == GPUS
    assert replicas(first)["E"] > replicas(second)["E"] < replicas(third)["E"]


async def promised(system: System, store: Store, traffic: Traffic, after: int = 0) -> Plan:
    """The next plan; fails unless it serves as many requests as it says it can."""
    plan = await settled(system, store, after)
    await asyncio.sleep(SETTLES)
    promise = pytest.approx(capacity(plan), rel=0.1)
    rates = [await traffic.rate(SECONDS)]
    while rates[-1] != promise and len(rates) < LOOKS:  # whoever else uses this machine may have slowed it down
        rates.append(await traffic.rate(SECONDS))
    print("RATES", rates, capacity(plan), plan.epoch, plan.reason, replicas(plan))
    assert rates[-1] == promise, replicas(plan)
    return plan
