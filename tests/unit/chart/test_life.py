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
from tests.unit.chart.shapes import DECLARED, Site, env, of, values
from tests.unit.planner.crowd import Crowd
from tests.unit.sidecar.node import until

VALUES = values("values-gpu.yaml", models=DECLARED)
OURS = "omnibus-planner"


class Release:
    """An installed chart with its store and bus, and ready executors."""

    def __init__(self, site: Site, store: Store, planner: PlannerPod) -> None:
        self.site = site
        self.store = store
        self.planner = planner

    def executors(self) -> dict[str, Object]:
        """Return the executors by model and option."""
        found = [each for kind in WORKLOADS for each in self.site.api.of(kind).values()]
        labels = {id(each): each["metadata"]["labels"] for each in found}
        return {
            f"{labels[id(each)]['omnibus/model']}/{labels[id(each)]['omnibus/option']}": each
            for each in found
            if labels[id(each)].get("app.kubernetes.io/managed-by") == OURS
        }

    def images(self) -> dict[str, str]:
        return {name: leader(each)["spec"]["containers"][0]["image"] for name, each in self.executors().items()}

    async def until_images(self, tag: str) -> None:
        await until(lambda: set(self.images().values()) == {f"omnibus-encoder:{tag}", f"omnibus-llm:{tag}"})

    async def until(self, **numbers: int) -> None:
        await until(lambda: {name[-1]: each["spec"]["replicas"] for name, each in self.executors().items()} == numbers)


def leader(made: Object) -> Object:
    return made["spec"].get("template") or made["spec"]["leaderWorkerTemplate"]["leaderTemplate"]


@pytest.fixture
async def release(site: Site, nats_url: str, valkey_url: str, tmp_path: Path) -> AsyncIterator[Release]:
    raw = redis.Redis.from_url(valkey_url)
    await raw.flushall()
    store = Store(StoreSettings(url=valkey_url))
    bus = await NatsBus.connect(BusSettings(url=nats_url), "test")
    crowd = Crowd(store, bus)
    await crowd.open()
    servers = {"OMNIBUS_BUS_URL": nats_url, "OMNIBUS_STORE_URL": valkey_url, "OMNIBUS_KUBERNETES_URL": site.url}
    yield Release(site, store, PlannerPod(site.api, tmp_path, servers))
    await crowd.close()
    await bus.drain()
    await store.close()
    await raw.aclose()


async def test_the_planner_of_a_release_runs_what_is_declared(release: Release):
    await release.site.helm.install("om", VALUES)
    async with release.planner.running():
        await release.until(E=1, L=2)
        await until(
            lambda: {each["metadata"]["labels"]["omnibus/epoch"] for each in release.executors().values()} == {"1"}
        )

    objects = [*release.executors().values(), *release.site.api.of("Lease").values()]
    assert [
        fault for version in schemas.VERSIONS for each in objects for fault in schemas.faults(_sent(each), version)
    ] == []
    container = leader(release.executors()["qwen/L"])["spec"]["containers"][0]
    told = env(leader(release.executors()["qwen/L"]))
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert (told["OMNIBUS_EXECUTOR_DEVICE"], told["OMNIBUS_VLLM_TENSOR_PARALLEL"]) == ("cuda", "2")
    assert told["OMNIBUS_EXECUTOR_DTYPE"] == "bfloat16"
    near = json.dumps(leader(release.executors()["qwen/L"])["spec"]["affinity"])
    assert '"omnibus/model": "qwen"' in near
    assert "{model}" not in near
    assert told["OMNIBUS_EXECUTOR_CHECKPOINT"] == "Qwen/Qwen2.5-VL-7B-Instruct"


def _sent(made: Object) -> Object:
    return {**made, "metadata": {key: value for key, value in made["metadata"].items() if key != "creationTimestamp"}}


async def test_the_planner_may_do_what_it_does_and_no_more(release: Release):
    newer = values("values-gpu.yaml", models=DECLARED, image__tag="v2")
    fewer = values("values-gpu.yaml", models=DECLARED, image__tag="v2", models__models__qwen__options__L__replicas=1)
    asked: set[tuple[str, str]] = set()
    objects = await release.site.helm.install("om", VALUES)
    for number, tag, shape in ((2, "0.1.0", VALUES), (2, "v2", newer), (1, "v2", fewer)):
        await release.site.helm.upgrade("om", shape)
        release.site.api.asked.clear()
        async with release.planner.running():
            await release.until_images(tag)
            await release.until(E=1, L=number)
        asked |= set(release.site.api.asked)

    rules = of(objects, "Role")["om-planner"]["rules"]
    used = {each: rule_of(rules, *each) for each in asked}
    assert [each for each, rule in used.items() if rule is None] == []
    assert {method for method, path in asked if "/deployments" in path} == {"GET", "POST", "PUT", "PATCH"}
    assert set(used.values()) == set(range(len(rules)))


VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def rule_of(rules: list[Object], method: str, path: str) -> int | None:
    """Return the index of the rule that allows a request, or None."""
    root, _, rest = path.strip("/").partition("/namespaces/ns/")
    plural, _, name = rest.partition("/")
    group = root.split("/")[1] if root.startswith("apis/") else ""
    verb = VERBS.get(method) or ("get" if name else "list")
    for number, rule in enumerate(rules):
        named = "resourceNames" not in rule or name in rule["resourceNames"]
        if group in rule["apiGroups"] and plural in rule["resources"] and verb in rule["verbs"] and named:
            return number
    return None


async def test_another_image_replaces_executors_and_nothing_else_does(release: Release):
    await release.site.helm.install("om", VALUES)
    async with release.planner.running():
        await release.until(E=1, L=2)
    first = release.executors()

    await release.site.helm.upgrade("om", {**VALUES, "gateway": {"replicas": 3}})
    async with release.planner.running():
        await release.until(E=1, L=2)
        await until(lambda: release.site.api.of("Lease")["om-planner"]["spec"]["holderIdentity"] != "")
    same = release.executors()
    await release.site.helm.upgrade("om", values("values-gpu.yaml", models=DECLARED, image__tag="v2"))
    async with release.planner.running():
        await release.until_images("v2")
    newer = release.executors()

    assert {name: leader(each) for name, each in same.items()} == {name: leader(each) for name, each in first.items()}
    assert {name: each["metadata"]["uid"] for name, each in newer.items()} == {
        name: each["metadata"]["uid"] for name, each in first.items()
    }


async def test_upgrades_keep_the_passwords(site: Site):
    await site.helm.install("om", {})
    (before,) = (each["data"] for name, each in site.api.of("Secret").items() if name == "om-credentials")

    await site.helm.upgrade("om", {"gateway": {"replicas": 3}})

    assert site.api.of("Secret")["om-credentials"]["data"] == before
    assert site.api.of("Deployment")["om-gateway"]["spec"]["replicas"] == 3


async def test_an_uninstall_leaves_nothing_behind(release: Release):
    await release.site.helm.install("om", VALUES)
    async with release.planner.running():
        await release.until(E=1, L=2)

    await release.site.helm.uninstall("om")

    assert release.site.api.objects == {}


async def test_two_releases_in_one_namespace_do_not_touch_each_other(release: Release):
    await release.site.helm.install("om", VALUES)
    await release.site.helm.install("other", VALUES)
    async with release.planner.running():
        await release.until(E=1, L=2)

    await release.site.helm.uninstall("other")

    assert len(release.executors()) == 2
    sockets = [
        env(each["spec"]["template"])["OMNIBUS_SIDECAR_SOCKET"] for each in release.site.api.of("DaemonSet").values()
    ]
    assert len(sockets) == 1
