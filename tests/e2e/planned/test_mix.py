"""Requests change from images to text and back; the plan follows without failures.

The nightly run measures the promised rate, because that needs a machine without other load.
"""

import asyncio

import pytest

from omnibus.plan import Plan
from tests.e2e.planned.cell import SEEN, TEXT
from tests.e2e.planned.conftest import GPUS, Planned
from tests.e2e.planned.load import MixTraffic, saturate_system
from tests.e2e.planned.settled import Places, read_capacity, read_reasons, read_replicas, wait_for_plan
from tests.nightly import mark_nightly

pytestmark = pytest.mark.e2e

IMAGES, WORDS = 0.8, 0.2  # shares of requests with an image
AT_ONCE = 96
SETTLES, SECONDS = 4.0, 8.0  # until requests of the old mix are gone; of one measurement
LOOKS = 3  # measurements at most


@pytest.mark.parametrize("is_measured", [False, *mark_nightly(True)], ids=["follows", "serves what it promises"])
async def test_the_plan_follows_the_mix(run_planned: Planned, is_measured: bool):
    with run_planned(mix={SEEN: IMAGES, TEXT: 1 - IMAGES}) as system:
        async with (
            system.store() as store,
            saturate_system(system, IMAGES, AT_ONCE) as traffic,
            Places.of(system) as places,
        ):

            async def planned_after(epoch: int) -> Plan:
                plan = await wait_for_plan(system, store, epoch)
                if is_measured:
                    await serves_what_it_promises(plan, traffic)
                return plan

            first = await planned_after(0)
            traffic.seen = WORDS
            second = await planned_after(first.epoch)
            traffic.seen = IMAGES
            third = await planned_after(second.epoch)
            reasons = await read_reasons(store)

    assert set(traffic.answers) == {200}
    assert len(reasons) == 2, reasons
    assert sum(read_replicas(first).values()) == places.most == GPUS
    assert read_replicas(first)["E"] > read_replicas(second)["E"] < read_replicas(third)["E"]


async def serves_what_it_promises(plan: Plan, traffic: MixTraffic) -> None:
    """Check that the system serves the rate of its plan."""
    await asyncio.sleep(SETTLES)
    promise = pytest.approx(read_capacity(plan), rel=0.1)
    rates = [await traffic.rate(SECONDS)]
    while rates[-1] != promise and len(rates) < LOOKS:  # other load on this machine may have slowed it down
        rates.append(await traffic.rate(SECONDS))
    assert rates[-1] == promise, f"{rates} of {read_capacity(plan)} by {read_replicas(plan)}"
