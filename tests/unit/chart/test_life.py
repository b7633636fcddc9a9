"""A release and its planner's pod, from install to uninstall."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio as redis

from omnibus.bus.nats import NatsBus
from omnibus.settings import BusSettings, StoreSettings
from omnibus.store import Store
from tests.kube import schemas
from tests.kube.api import WORKLOADS, Object
from tests.unit.chart.pod import PlannerPod
from tests.unit.chart.shapes import DECLARED, ChartSite, make_values, read_env, select_kind
from tests.unit.planner.crowd import ExecutorCrowd
from tests.unit.sidecar.node import wait_until

VALUES = make_values("values-gpu.yaml", models=DECLARED)
OURS = "omnibus-planner"


class InstalledRelease:
    """An installed chart with its store and bus, and ready executors."""

    def __init__(self, site: ChartSite, store: Store, planner: PlannerPod) -> None:
        self.site = site
        self.store = store
        self.planner = planner

    def executors(self) -> dict[str, Object]:
        """Return the executors by model and option."""
        workloads = [each for kind in WORKLOADS for each in self.site.api.of(kind).values()]
        labels = {id(each): each["metadata"]["labels"] for each in workloads}
        return {
            f"{labels[id(each)]['omnibus/model']}/{labels[id(each)]['omnibus/option']}": each
            for each in workloads
            if labels[id(each)].get("app.kubernetes.io/managed-by") == OURS
        }

    def images(self) -> dict[str, str]:
        return {name: read_leader(each)["spec"]["containers"][0]["image"] for name, each in self.executors().items()}

    async def until_images(self, tag: str) -> None:
        await wait_until(lambda: set(self.images().values()) == {f"omnibus-encoder:{tag}", f"omnibus-llm:{tag}"})

    async def wait_for_replicas(self, **numbers: int) -> None:
        await wait_until(
            lambda: {name[-1]: each["spec"]["replicas"] for name, each in self.executors().items()} == numbers
        )


def read_leader(workload: Object) -> Object:
    return workload["spec"].get("template") or workload["spec"]["leaderWorkerTemplate"]["leaderTemplate"]


@pytest.fixture
async def release(site: ChartSite, nats_url: str, valkey_url: str, tmp_path: Path) -> AsyncIterator[InstalledRelease]:
    raw = redis.Redis.from_url(valkey_url)
    await raw.flushall()
    store = Store(StoreSettings(url=valkey_url))
    bus = await NatsBus.connect(BusSettings(url=nats_url), "test")
    crowd = ExecutorCrowd(store, bus)
    await crowd.open()
    servers = {"OMNIBUS_BUS_URL": nats_url, "OMNIBUS_STORE_URL": valkey_url, "OMNIBUS_KUBERNETES_URL": site.url}
    yield InstalledRelease(site, store, PlannerPod(site.api, tmp_path, servers))
    await crowd.close()
    await bus.drain()
    await store.close()
    await raw.aclose()


async def test_the_planner_of_a_release_runs_what_is_declared(release: InstalledRelease):
    await release.site.helm.install("om", VALUES)
    async with release.planner.run_planner():
        await release.wait_for_replicas(E=1, L=2)
        await wait_until(
            lambda: {each["metadata"]["labels"]["omnibus/epoch"] for each in release.executors().values()} == {"1"}
        )

    objects = [*release.executors().values(), *release.site.api.of("Lease").values()]
    assert [
        fault
        for version in schemas.VERSIONS
        for each in objects
        for fault in schemas.find_faults(_drop_timestamp(each), version)
    ] == []
    container = read_leader(release.executors()["qwen/L"])["spec"]["containers"][0]
    environment = read_env(read_leader(release.executors()["qwen/L"]))
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert (environment["OMNIBUS_EXECUTOR_DEVICE"], environment["OMNIBUS_VLLM_TENSOR_PARALLEL"]) == ("cuda", "2")
    assert environment["OMNIBUS_EXECUTOR_DTYPE"] == "bfloat16"
    near = json.dumps(read_leader(release.executors()["qwen/L"])["spec"]["affinity"])
    assert '"omnibus/model": "qwen"' in near
    assert "{model}" not in near
    assert environment["OMNIBUS_EXECUTOR_CHECKPOINT"] == "Qwen/Qwen2.5-VL-7B-Instruct"


def _drop_timestamp(workload: Object) -> Object:
    return {
        **workload,
        "metadata": {key: value for key, value in workload["metadata"].items() if key != "creationTimestamp"},
    }


async def test_the_planner_may_do_what_it_does_and_no_more(release: InstalledRelease):
    newer = make_values("values-gpu.yaml", models=DECLARED, image__tag="v2")
    fewer = make_values(
        "values-gpu.yaml", models=DECLARED, image__tag="v2", models__models__qwen__options__L__replicas=1
    )
    requests: set[tuple[str, str]] = set()
    objects = await release.site.helm.install("om", VALUES)
    for number, tag, shape in ((2, "0.1.0", VALUES), (2, "v2", newer), (1, "v2", fewer)):
        await release.site.helm.upgrade("om", shape)
        release.site.api.asked.clear()
        async with release.planner.run_planner():
            await release.until_images(tag)
            await release.wait_for_replicas(E=1, L=number)
        requests |= set(release.site.api.asked)

    rules = select_kind(objects, "Role")["om-planner"]["rules"]
    used_rules = {each: rule_of(rules, *each) for each in requests}
    assert [each for each, rule in used_rules.items() if rule is None] == []
    assert {method for method, path in requests if "/deployments" in path} == {"GET", "POST", "PUT", "PATCH"}
    assert set(used_rules.values()) == set(range(len(rules)))


VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def rule_of(rules: list[Object], method: str, path: str) -> int | None:
    """Return the index of the rule that allows a request, or None."""
    root, _, rest = path.strip("/").partition("/namespaces/ns/")
    plural, _, name = rest.partition("/")
    group = root.split("/")[1] if root.startswith("apis/") else ""
    verb = VERBS.get(method) or ("get" if name else "list")
    for number, rule in enumerate(rules):
        is_named = "resourceNames" not in rule or name in rule["resourceNames"]
        if group in rule["apiGroups"] and plural in rule["resources"] and verb in rule["verbs"] and is_named:
            return number
    return None


async def test_another_image_replaces_executors_and_nothing_else_does(release: InstalledRelease):
    await release.site.helm.install("om", VALUES)
    async with release.planner.run_planner():
        await release.wait_for_replicas(E=1, L=2)
    first = release.executors()

    await release.site.helm.upgrade("om", {**VALUES, "gateway": {"replicas": 3}})
    async with release.planner.run_planner():
        await release.wait_for_replicas(E=1, L=2)
        await wait_until(lambda: release.site.api.of("Lease")["om-planner"]["spec"]["holderIdentity"] != "")
    same = release.executors()
    await release.site.helm.upgrade("om", make_values("values-gpu.yaml", models=DECLARED, image__tag="v2"))
    async with release.planner.run_planner():
        await release.until_images("v2")
    newer = release.executors()

    assert {name: read_leader(each) for name, each in same.items()} == {
        name: read_leader(each) for name, each in first.items()
    }
    assert {name: each["metadata"]["uid"] for name, each in newer.items()} == {
        name: each["metadata"]["uid"] for name, each in first.items()
    }


async def test_upgrades_keep_the_passwords(site: ChartSite):
    await site.helm.install("om", {})
    (before,) = (each["data"] for name, each in site.api.of("Secret").items() if name == "om-credentials")

    await site.helm.upgrade("om", {"gateway": {"replicas": 3}})

    assert site.api.of("Secret")["om-credentials"]["data"] == before
    assert site.api.of("Deployment")["om-gateway"]["spec"]["replicas"] == 3


async def test_an_uninstall_leaves_nothing_behind(release: InstalledRelease):
    await release.site.helm.install("om", VALUES)
    async with release.planner.run_planner():
        await release.wait_for_replicas(E=1, L=2)

    await release.site.helm.uninstall("om")

    assert release.site.api.objects == {}


async def test_two_releases_in_one_namespace_do_not_touch_each_other(release: InstalledRelease):
    await release.site.helm.install("om", VALUES)
    await release.site.helm.install("other", VALUES)
    async with release.planner.run_planner():
        await release.wait_for_replicas(E=1, L=2)

    await release.site.helm.uninstall("other")

    assert len(release.executors()) == 2
    sockets = [
        read_env(each["spec"]["template"])["OMNIBUS_SIDECAR_SOCKET"]
        for each in release.site.api.of("DaemonSet").values()
    ]
    assert len(sockets) == 1
