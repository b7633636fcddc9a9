"""One of several planners starts and stops executors. Their clocks do not matter."""

from typing import Any

import pytest

from omnibus.settings import KubernetesSettings
from omnibus_planner.reconcile import leader_election as leases
from omnibus_planner.reconcile.kube_client import ClusterUnavailable, KubernetesClient
from omnibus_planner.reconcile.leader_election import LeaderLease
from tests.kube.api import Api
from tests.unit.planner.reconcile.test_kube_backend import cluster, door, settings

__all__ = ["cluster", "door", "settings"]


class LeaseClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> LeaseClock:
    clock = LeaseClock()
    monkeypatch.setattr(leases, "time", clock)
    return clock


@pytest.fixture
def lease_pair(settings: KubernetesSettings, clock: LeaseClock) -> tuple[LeaderLease, LeaderLease]:
    async def do_nothing() -> None: ...

    return LeaderLease(KubernetesClient(settings), "omnibus", do_nothing, "one"), LeaderLease(
        KubernetesClient(settings), "omnibus", do_nothing, "other"
    )


def read_holder(cluster: Api) -> str:
    return cluster.of("Lease")["omnibus"]["spec"]["holderIdentity"]


async def test_whoever_comes_first_leads_and_goes_on_leading(
    lease_pair: tuple[LeaderLease, LeaderLease], cluster: Api, clock: LeaseClock
):
    one, other = lease_pair

    assert await one.acquire_or_renew()
    for _ in range(5):
        clock.now += leases.RENEW_DEADLINE_SECONDS - 1
        assert not await other.acquire_or_renew()
        assert await one.acquire_or_renew()

    assert (one.is_leader, other.is_leader) == (True, False)
    assert read_holder(cluster) == "one"


async def test_one_that_falls_silent_leads_no_more_before_the_next_one_does(
    lease_pair: tuple[LeaderLease, LeaderLease], cluster: Api, clock: LeaseClock
):
    one, other = lease_pair
    await one.acquire_or_renew()
    await other.acquire_or_renew()

    clock.now += leases.RENEW_DEADLINE_SECONDS
    between = (one.is_leader, await other.acquire_or_renew())
    clock.now += leases.LEASE_DURATION_SECONDS - leases.RENEW_DEADLINE_SECONDS + 0.1
    is_taken = await other.acquire_or_renew()

    assert between == (False, False)
    assert (is_taken, await one.acquire_or_renew(), read_holder(cluster)) == (True, False, "other")
    assert cluster.of("Lease")["omnibus"]["spec"]["leaseTransitions"] == 1


async def test_the_clock_of_another_machine_says_nothing(
    lease_pair: tuple[LeaderLease, LeaderLease], cluster: Api, clock: LeaseClock
):
    one, other = lease_pair
    await one.acquire_or_renew()
    cluster.of("Lease")["omnibus"]["spec"]["renewTime"] = "1999-01-01T00:00:00.000000Z"

    assert not await other.acquire_or_renew()


async def test_of_two_that_take_it_at_once_one_is_refused(
    lease_pair: tuple[LeaderLease, LeaderLease], cluster: Api, clock: LeaseClock
):
    one, other = lease_pair
    await one.acquire_or_renew()
    await other.acquire_or_renew()
    clock.now += leases.LEASE_DURATION_SECONDS + 1

    with pytest.raises(ClusterUnavailable, match="has been modified"):
        await overtake_lease(one, other)
    assert not one.is_leader
    assert read_holder(cluster) == "other"


async def overtake_lease(one: LeaderLease, other: LeaderLease) -> None:
    """Let ``other`` take the lease between the reading and taking of ``one``."""
    find = one._find

    async def find_slowly() -> dict[str, Any] | None:
        lease = await find()
        await other.acquire_or_renew()
        return lease

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one, "_find", find_slowly)
        await one.acquire_or_renew()
