"""A cluster follows the plans of a real store: no needed workload stops, and none starts twice."""

import asyncio
import json
from collections.abc import AsyncIterator

import msgspec
import pytest
import redis.asyncio as redis

from omnibus.bus import subjects
from omnibus.bus.messages import GatewayStatus
from omnibus.cluster.presence import GatewayPlans, desired_executors
from omnibus.plan import DeploymentOption, ModelPlan, Plan
from omnibus.service import until_cancelled
from omnibus.settings import BusSettings, KubernetesSettings, StoreSettings
from omnibus.store import Store
from omnibus_planner.reconcile import KubernetesBackend, Reconciler, leader_election, manifests
from tests.kube.api import Object
from tests.kube.serve import Door
from tests.memory_bus import MemoryBus
from tests.unit.planner.reconcile.test_kube_backend import cluster, door, settings
from tests.unit.sidecar.node import wait_until

__all__ = ["cluster", "door", "settings"]

WORKLOADS = "/apis/apps/v1/namespaces/ns"


def make_plan(epoch: int, **replicas: int) -> Plan:
    options = {name: DeploymentOption(("thinker",), "llm", count) for name, count in replicas.items()}
    return Plan(epoch, 0, float(epoch), {"m": ModelPlan("f", "/m", ("thinker",), {}, options, {})})


class ReconcilerSite:
    """A store, a cluster, gateways, and a reconciler between them."""

    def __init__(
        self, store: Store, raw: redis.Redis, bus: MemoryBus, door: Door, settings: KubernetesSettings
    ) -> None:
        self.store = store
        self.raw = raw
        self.bus = bus
        self.door = door
        self.cluster = door.api
        self.settings = settings

        self.work: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def reconciler(self) -> "asyncio.Future[None]":
        """Start another planner's reconciler."""
        gateways = GatewayPlans()
        await gateways.listen(self.bus)
        return asyncio.ensure_future(Reconciler(self.store, KubernetesBackend(self.settings), gateways).run())

    def gateway(self, created_at: float) -> None:
        """Report a gateway's plan."""
        status = GatewayStatus("g", int(created_at), created_at)
        self.bus.publish(subjects.event_subject(subjects.GATEWAY), msgspec.json.encode(status))

    @property
    def running_replicas(self) -> dict[str, int]:
        return {option: each["spec"]["replicas"] for option, each in self.workloads.items()}

    @property
    def workloads(self) -> dict[str, Object]:
        """Return the workloads by option."""
        own_objects = [each for each in self.cluster.objects.values() if each["metadata"].get("annotations")]
        return {each["metadata"]["annotations"]["omnibus/option"]: each for each in own_objects}

    @property
    def epochs(self) -> dict[str, str]:
        return {option: each["metadata"]["labels"]["omnibus/epoch"] for option, each in self.workloads.items()}

    async def until(self, **replicas: int) -> None:
        await wait_until(lambda: self.running_replicas == replicas)


@pytest.fixture
async def site(valkey_url: str, door: Door, settings: KubernetesSettings) -> AsyncIterator[ReconcilerSite]:
    raw = redis.Redis.from_url(valkey_url)
    await raw.flushall()
    store, bus = Store(StoreSettings(url=valkey_url)), MemoryBus(BusSettings())
    values = {name: getattr(settings, name) for name in settings.__struct_fields__}
    site = ReconcilerSite(store, raw, bus, door, KubernetesSettings(**{**values, "resync": 0.2}))
    site.work = await site.reconciler()
    yield site
    await until_cancelled(site.work)
    await bus.drain()
    await store.close()
    await raw.aclose()


async def test_workloads_follow_the_plan_and_equal_ones_are_left_alone(site: ReconcilerSite):
    await site.store.swap_plan(make_plan(1, E=1, L=1))
    await site.until(E=1, L=1)
    pods = site.workloads["E"]["spec"]
    site.cluster.asked.clear()

    await site.store.swap_plan(make_plan(2, E=1, L=3))
    await site.until(E=1, L=3)
    await site.store.swap_plan(make_plan(3, E=1, X=2))
    await site.until(E=1, X=2)

    assert [method for method, _ in site.cluster.changes if method != "PATCH"] == ["POST", "DELETE"]
    assert site.workloads["E"]["spec"] == pods


async def test_workloads_say_which_plan_wants_them_forward_and_back(site: ReconcilerSite):
    await site.store.swap_plan(make_plan(1, E=1, L=2))
    await site.until(E=1, L=2)
    first = {option: each["spec"] for option, each in site.workloads.items()}

    await site.store.swap_plan(make_plan(2, E=1, EL=1))
    await wait_until(lambda: site.epochs == {"E": "2", "EL": "2"})
    await site.store.swap_plan(make_plan(3, E=1, L=2))
    await wait_until(lambda: site.epochs == {"E": "3", "L": "3"})

    assert {option: each["spec"] for option, each in site.workloads.items()} == first


async def test_of_several_planners_one_works(site: ReconcilerSite):
    await site.store.swap_plan(make_plan(1, L=1))
    await site.until(L=1)
    (lease,) = site.cluster.of("Lease").values()
    other = await site.reconciler()
    first = lease["spec"]["holderIdentity"]

    await site.store.swap_plan(make_plan(2, L=2))
    await site.until(L=2)
    (lease,) = site.cluster.of("Lease").values()
    holder = lease["spec"]["holderIdentity"]
    await until_cancelled(other)

    assert first == holder != ""
    assert site.cluster.changes.count(("POST", "deployments")) == 1


async def test_without_a_planner_nothing_changes_and_the_next_one_finds_all_as_it_was(site: ReconcilerSite):
    await site.store.swap_plan(make_plan(1, E=1, L=2))
    await site.until(E=1, L=2)
    await until_cancelled(site.work)
    before = json.dumps(site.workloads)
    site.cluster.asked.clear()

    (lease,) = site.cluster.of("Lease").values()
    site.work = await site.reconciler()
    await wait_until(lambda: ("GET", f"{WORKLOADS}/deployments") in site.cluster.asked)
    await site.store.swap_plan(make_plan(2, E=1, L=3))
    await site.until(E=1, L=3)

    assert lease["spec"]["holderIdentity"] == ""
    assert json.loads(before)["E"]["spec"] == site.workloads["E"]["spec"]
    assert [method for method, _ in site.cluster.changes if method != "PATCH"] == []


async def test_what_is_staged_runs_beside_what_is_current_until_it_takes_over(site: ReconcilerSite):
    await site.store.swap_plan(make_plan(1, E=1, L=2))
    await site.until(E=1, L=2)

    await site.store.stage_plan(make_plan(2, EL=1, L=1), "me", 30.0)
    await site.until(E=1, L=2, EL=1)
    await site.store.swap_plan(make_plan(2, EL=1, L=1))
    await site.until(EL=1, L=1)


async def test_what_was_staged_and_given_up_goes(site: ReconcilerSite):
    await site.store.swap_plan(make_plan(1, L=1))
    await site.store.stage_plan(make_plan(2, EL=1), "me", 30.0)
    await site.until(L=1, EL=1)

    await site.store.unstage_plan("me")

    await site.until(L=1)


async def test_nothing_stops_before_every_gateway_has_left_its_plan(site: ReconcilerSite):
    site.gateway(1.0)
    await site.store.swap_plan(make_plan(1, E=1))
    await site.until(E=1)

    await site.store.swap_plan(make_plan(2, EL=1))
    await site.until(E=1, EL=1)
    await asyncio.sleep(0.5)  # some looks
    still = site.running_replicas
    site.gateway(2.0)
    await site.until(EL=1)

    assert still == {"E": 1, "EL": 1}


async def test_what_somebody_removed_by_hand_comes_back(site: ReconcilerSite):
    await site.store.swap_plan(make_plan(1, L=2))
    await site.until(L=2)

    site.cluster.objects.clear()

    await site.until(L=2)


async def test_a_refusal_is_said_and_tried_again(site: ReconcilerSite):
    site.door.refusals += [(403, b'{"message": "may not list"}')] * 2
    await site.store.swap_plan(make_plan(1, L=1))

    async def is_refused() -> bool:
        return "may not list" in str(await site.store.plan_problems())

    async def is_quiet() -> bool:
        return not await site.store.plan_problems()

    await wait_until(is_refused)
    await site.until(L=1)
    await wait_until(is_quiet)


async def test_a_planner_that_cannot_find_out_who_leads_says_so_and_changes_nothing(
    site: ReconcilerSite, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(leader_election, "RETRY_PERIOD_SECONDS", 0.1)
    await until_cancelled(site.work)
    site.door.forbidden.add("/leases")
    site.work = await site.reconciler()
    await site.store.swap_plan(make_plan(1, L=1))

    async def is_refused() -> bool:
        return "leases/omnibus is forbidden" in str(await site.store.plan_problems())

    async def is_quiet() -> bool:
        return not await site.store.plan_problems()

    await wait_until(is_refused)
    there = site.running_replicas
    site.door.forbidden.clear()
    await site.until(L=1)
    await wait_until(is_quiet)

    assert there == {}


async def test_one_workload_that_is_refused_stops_no_other(site: ReconcilerSite):
    await site.store.swap_plan(make_plan(1, A=1))
    await site.until(A=1)
    name = manifests.workload_name("omnibus", next(kind for kind in desired_executors(make_plan(2, B=1))))
    foreign_workload: Object = {"kind": "Deployment", "metadata": {"name": name, "labels": {}}, "spec": {}}
    site.cluster.objects[f"{WORKLOADS}/deployments/{name}"] = foreign_workload  # not ours: B cannot be started

    await site.store.swap_plan(make_plan(2, A=2, B=1, C=1))
    await wait_until(lambda: sorted(site.running_replicas.items()) == [("A", 2), ("C", 1)])
    site.cluster.objects.pop(f"{WORKLOADS}/deployments/{name}")

    await site.until(A=2, B=1, C=1)


async def test_a_plan_of_another_build_changes_nothing(site: ReconcilerSite):
    await site.store.swap_plan(make_plan(1, L=1))
    await site.until(L=1)
    site.cluster.asked.clear()

    await site.raw.set("omnibus:plan:2", '{"v": 9}')
    await site.raw.set("omnibus:plan:epoch", "2")
    await site.raw.publish("omnibus:plan", "2")
    await asyncio.sleep(0.3)
    await site.raw.flushall()
    await site.raw.publish("omnibus:plan", "0")
    await asyncio.sleep(0.3)

    assert site.running_replicas == {"L": 1}
    assert site.cluster.changes == []
