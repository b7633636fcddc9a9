"""Templates for one option, executors of several pods, and workloads' owners."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnibus.errors import BadRequest
from omnibus.settings import KubernetesSettings
from omnibus_planner.reconcile import KubernetesBackend
from omnibus_planner.reconcile.kube_client import ClusterRefused, ClusterUnavailable
from tests.kube.api import Api, Object
from tests.unit.planner.reconcile.test_kube_backend import asked, backend, cluster, door, settings, template

__all__ = ["backend", "cluster", "door", "settings"]


def group(size: int = 2) -> Object:
    pod = template()["spec"]["template"]
    worker = {"metadata": {}, "spec": {"containers": [{"name": "worker", "env": [{"name": "A", "value": "b"}]}]}}
    inside = {"size": size, "leaderTemplate": pod, "workerTemplate": worker}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "spec": {"leaderWorkerTemplate": inside},
    }


def backends(settings: KubernetesSettings, templates: dict[str, Any], **more: Any) -> KubernetesBackend:
    Path(settings.template).write_text(json.dumps(templates))
    values = {name: getattr(settings, name) for name in settings.__struct_fields__}
    return KubernetesBackend(KubernetesSettings(**{**values, **more}))


async def test_an_option_may_have_a_template_of_its_own(settings: KubernetesSettings, cluster: Api):
    both = backends(settings, {"llm": template(), "Org/Model.A/L+x": template(image="special:1")})

    await both.start(asked())
    await both.start(asked(model="other"))

    images = {
        made["metadata"]["labels"]["omnibus/model"]: made["spec"]["template"]["spec"]["containers"][0]["image"]
        for made in cluster.of("Deployment").values()
    }
    assert images == {"Org-Model.A": "special:1", "other": "omnibus-llm:1"}


async def test_workloads_and_pods_are_found_by_model_option_and_epoch(backend: KubernetesBackend, cluster: Api):
    await backend.start(msgspec.structs.replace(asked(model=f"-{'x' * 80}/ä"), epoch=4))

    (made,) = cluster.of("Deployment").values()
    labels, inside = made["metadata"]["labels"], made["spec"]["template"]["metadata"]["labels"]
    assert (labels["omnibus/option"], labels["omnibus/epoch"]) == ("L-x", "4")
    assert labels["omnibus/model"] == inside["omnibus/model"] == "x" * 62
    assert "omnibus/epoch" not in inside  # or pods would be replaced with each plan


async def test_executors_with_gpus_use_them_unless_the_template_knows_better(
    settings: KubernetesSettings, cluster: Api
):
    told = template()
    told["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "OMNIBUS_VLLM_TENSOR_PARALLEL", "value": "1"}]
    both = backends(settings, {"llm": template(), "other/L+x": told})

    for each in (asked(gpus=2), asked(gpus=2, model="other"), asked(model="none")):
        await both.start(each)

    found = {}
    for made in cluster.of("Deployment").values():
        env = {each["name"]: each.get("value") for each in made["spec"]["template"]["spec"]["containers"][0]["env"]}
        found[env["OMNIBUS_EXECUTOR_MODEL"]] = [
            env.get("OMNIBUS_EXECUTOR_DEVICE"),
            env.get("OMNIBUS_VLLM_TENSOR_PARALLEL"),
        ]
    assert found == {"Org/Model.A": ["cuda", "2"], "other": ["cuda", "1"], "none": [None, None]}


async def test_pods_of_a_group_share_the_gpus_and_the_leader_is_the_executor(
    settings: KubernetesSettings, cluster: Api
):
    groups = backends(settings, {"default": group()})

    await groups.start(asked(3, gpus=16, gpu="h100"))
    (found,) = await groups.list_workloads()

    (made,) = cluster.of("LeaderWorkerSet").values()
    inside = made["spec"]["leaderWorkerTemplate"]
    leader, worker = inside["leaderTemplate"], inside["workerTemplate"]
    limits = [pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for pod in (leader, worker)]
    names = {each["name"] for each in leader["spec"]["containers"][0]["env"]}
    assert (found.replicas, found.mark) == (3, groups.workload_hash(asked(gpus=16, gpu="h100")))
    assert "selector" not in made["spec"]
    assert limits == ["8", "8"]
    assert {"OMNIBUS_EXECUTOR_ID", "OMNIBUS_VLLM_TENSOR_PARALLEL"} <= names
    assert worker["spec"]["containers"][0]["env"] == [{"name": "A", "value": "b"}]
    assert worker["metadata"]["labels"]["omnibus/executor"] == found.name


async def test_a_group_is_scaled_changed_and_stopped(settings: KubernetesSettings, cluster: Api):
    groups = backends(settings, {"default": group()})
    await groups.start(asked(gpus=4))
    (found,) = await groups.list_workloads()

    await groups.scale(found, asked(2, gpus=4))
    newer = backends(settings, {"default": group(4)})
    (found,) = await newer.list_workloads()
    await newer.replace_executors(found, asked(2, gpus=4))
    (after,) = cluster.of("LeaderWorkerSet").values()
    stale = found  # the cluster has changed it since
    with pytest.raises(ClusterUnavailable, match="has been modified"):
        await newer.replace_executors(stale, asked(2, gpus=4))
    await newer.stop(found)

    assert after["spec"]["replicas"] == 2
    assert after["spec"]["leaderWorkerTemplate"]["size"] == 4
    assert cluster.objects == {}


def test_gpus_that_cannot_be_shared_out_are_refused(settings: KubernetesSettings):
    with pytest.raises(BadRequest, match="3 GPUs cannot be divided among groups of 2 pods"):
        backends(settings, {"default": group()}).workload_hash(asked(gpus=3))


async def test_a_cluster_without_groups_has_none(
    settings: KubernetesSettings, backend: KubernetesBackend, cluster: Api
):
    cluster.kinds = [kind for kind in cluster.kinds if kind.name != "LeaderWorkerSet"]

    assert await backend.list_workloads() == []
    with pytest.raises(ClusterRefused, match="404"):
        await backends(settings, {"default": group()}).start(asked())


async def test_workloads_go_with_what_they_belong_to(settings: KubernetesSettings, cluster: Api):
    owned = backends(settings, {"default": template()}, owner="mine")
    with pytest.raises(ClusterRefused, match="configmaps/mine not found"):
        await owned.start(asked())
    path = "/api/v1/namespaces/ns/configmaps"
    mine = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}}

    cluster.answer("POST", path, {}, mine, "application/json")
    await owned.start(asked())
    await owned.start(asked(model="other"))
    there = len(await owned.list_workloads())
    cluster.answer("DELETE", f"{path}/mine", {}, None, "")

    assert there == 2
    assert cluster.objects == {}
