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
from tests.unit.planner.reconcile.test_kube_backend import (
    backend,
    cluster,
    door,
    make_executors,
    make_template,
    settings,
)

__all__ = ["backend", "cluster", "door", "settings"]


def make_group(size: int = 2) -> Object:
    pod = make_template()["spec"]["template"]
    worker = {"metadata": {}, "spec": {"containers": [{"name": "worker", "env": [{"name": "A", "value": "b"}]}]}}
    inside = {"size": size, "leaderTemplate": pod, "workerTemplate": worker}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "spec": {"leaderWorkerTemplate": inside},
    }


def make_backend(settings: KubernetesSettings, templates: dict[str, Any], **more: Any) -> KubernetesBackend:
    Path(settings.template).write_text(json.dumps(templates))
    values = {name: getattr(settings, name) for name in settings.__struct_fields__}
    return KubernetesBackend(KubernetesSettings(**{**values, **more}))


async def test_an_option_may_have_a_template_of_its_own(settings: KubernetesSettings, cluster: Api):
    template_backend = make_backend(
        settings, {"llm": make_template(), "Org/Model.A/L+x": make_template(image="special:1")}
    )

    await template_backend.start(make_executors())
    await template_backend.start(make_executors(model="other"))

    images = {
        manifest["metadata"]["labels"]["omnibus/model"]: manifest["spec"]["template"]["spec"]["containers"][0]["image"]
        for manifest in cluster.of("Deployment").values()
    }
    assert images == {"Org-Model.A": "special:1", "other": "omnibus-llm:1"}


async def test_workloads_and_pods_are_found_by_model_option_and_epoch(backend: KubernetesBackend, cluster: Api):
    await backend.start(msgspec.structs.replace(make_executors(model=f"-{'x' * 80}/ä"), epoch=4))

    (manifest,) = cluster.of("Deployment").values()
    labels, inside = manifest["metadata"]["labels"], manifest["spec"]["template"]["metadata"]["labels"]
    assert (labels["omnibus/option"], labels["omnibus/epoch"]) == ("L-x", "4")
    assert labels["omnibus/model"] == inside["omnibus/model"] == "x" * 62
    assert "omnibus/epoch" not in inside  # or pods would be replaced with each plan


async def test_executors_with_gpus_use_them_unless_the_template_knows_better(
    settings: KubernetesSettings, cluster: Api
):
    own_template = make_template()
    own_template["spec"]["template"]["spec"]["containers"][0]["env"] = [
        {"name": "OMNIBUS_VLLM_TENSOR_PARALLEL", "value": "1"}
    ]
    template_backend = make_backend(settings, {"llm": make_template(), "other/L+x": own_template})

    for each in (make_executors(gpus=2), make_executors(gpus=2, model="other"), make_executors(model="none")):
        await template_backend.start(each)

    settings_by_model = {}
    for manifest in cluster.of("Deployment").values():
        env = {each["name"]: each.get("value") for each in manifest["spec"]["template"]["spec"]["containers"][0]["env"]}
        settings_by_model[env["OMNIBUS_EXECUTOR_MODEL"]] = [
            env.get("OMNIBUS_EXECUTOR_DEVICE"),
            env.get("OMNIBUS_VLLM_TENSOR_PARALLEL"),
        ]
    assert settings_by_model == {"Org/Model.A": ["cuda", "2"], "other": ["cuda", "1"], "none": [None, None]}


async def test_pods_of_a_group_share_the_gpus_and_the_leader_is_the_executor(
    settings: KubernetesSettings, cluster: Api
):
    groups = make_backend(settings, {"default": make_group()})

    await groups.start(make_executors(3, gpus=16, gpu="h100"))
    (workload,) = await groups.list_workloads()

    (manifest,) = cluster.of("LeaderWorkerSet").values()
    inside = manifest["spec"]["leaderWorkerTemplate"]
    leader, worker = inside["leaderTemplate"], inside["workerTemplate"]
    limits = [pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] for pod in (leader, worker)]
    names = {each["name"] for each in leader["spec"]["containers"][0]["env"]}
    assert (workload.replicas, workload.mark) == (3, groups.workload_hash(make_executors(gpus=16, gpu="h100")))
    assert "selector" not in manifest["spec"]
    assert limits == ["8", "8"]
    assert {"OMNIBUS_EXECUTOR_ID", "OMNIBUS_VLLM_TENSOR_PARALLEL"} <= names
    assert worker["spec"]["containers"][0]["env"] == [{"name": "A", "value": "b"}]
    assert worker["metadata"]["labels"]["omnibus/executor"] == workload.name


async def test_a_group_is_scaled_changed_and_stopped(settings: KubernetesSettings, cluster: Api):
    groups = make_backend(settings, {"default": make_group()})
    await groups.start(make_executors(gpus=4))
    (workload,) = await groups.list_workloads()

    await groups.scale(workload, make_executors(2, gpus=4))
    newer = make_backend(settings, {"default": make_group(4)})
    (workload,) = await newer.list_workloads()
    await newer.replace_executors(workload, make_executors(2, gpus=4))
    (after,) = cluster.of("LeaderWorkerSet").values()
    stale = workload  # the cluster has changed it since
    with pytest.raises(ClusterUnavailable, match="has been modified"):
        await newer.replace_executors(stale, make_executors(2, gpus=4))
    await newer.stop(workload)

    assert after["spec"]["replicas"] == 2
    assert after["spec"]["leaderWorkerTemplate"]["size"] == 4
    assert cluster.objects == {}


def test_gpus_that_cannot_be_shared_out_are_refused(settings: KubernetesSettings):
    with pytest.raises(BadRequest, match="3 GPUs cannot be divided among groups of 2 pods"):
        make_backend(settings, {"default": make_group()}).workload_hash(make_executors(gpus=3))


async def test_a_cluster_without_groups_has_none(
    settings: KubernetesSettings, backend: KubernetesBackend, cluster: Api
):
    cluster.kinds = [kind for kind in cluster.kinds if kind.name != "LeaderWorkerSet"]

    assert await backend.list_workloads() == []
    with pytest.raises(ClusterRefused, match="404"):
        await make_backend(settings, {"default": make_group()}).start(make_executors())


async def test_workloads_go_with_what_they_belong_to(settings: KubernetesSettings, cluster: Api):
    owner_backend = make_backend(settings, {"default": make_template()}, owner="mine")
    with pytest.raises(ClusterRefused, match="configmaps/mine not found"):
        await owner_backend.start(make_executors())
    path = "/api/v1/namespaces/ns/configmaps"
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}}

    cluster.answer("POST", path, {}, config_map, "application/json")
    await owner_backend.start(make_executors())
    await owner_backend.start(make_executors(model="other"))
    there = len(await owner_backend.list_workloads())
    cluster.answer("DELETE", f"{path}/mine", {}, None, "")

    assert there == 2
    assert cluster.objects == {}
