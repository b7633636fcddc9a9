"""Executors as workloads of a cluster: requests to its API server, over HTTPS."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnibus.cells import join_cells
from omnibus.cluster.presence import DesiredExecutors, desired_executors
from omnibus.errors import BadRequest, Retryable
from omnibus.plan import DeploymentOption, ModelPlan, Plan
from omnibus.settings import KubernetesSettings, PlannerSettings
from omnibus.up.ports import free_ports
from omnibus_planner import reconcile
from omnibus_planner.reconcile import KubernetesBackend, manifests
from omnibus_planner.reconcile.kube_client import ClusterRefused, ClusterUnavailable
from tests.kube.api import Api, Object
from tests.kube.serve import CERTIFICATE, TOKEN, Door, serve_door

IMAGE = "omnibus-llm:1"


def make_template(kind: str = "Deployment", image: str = IMAGE) -> dict[str, Any]:
    container = {
        "name": "executor", "image": image, "resources": {"limits": {"memory": "1Gi"}},
        "env": [{"name": "OMNIBUS_BUS_URL", "value": "nats://nats:4222"}, {"name": "OMNIBUS_EXECUTOR_MODEL", "value": "x"}],
    }  # fmt: skip
    pod = {"metadata": {"labels": {"team": "a"}}, "spec": {"containers": [container, {"name": "other"}]}}
    return {"apiVersion": "apps/v1", "kind": kind, "spec": {"minReadySeconds": 3, "template": pod}}


@pytest.fixture
def door() -> Door:
    return Door(Api())


@pytest.fixture
def cluster(door: Door) -> Api:
    return door.api


@pytest.fixture
def settings(door: Door, tmp_path: Path) -> Iterator[KubernetesSettings]:
    account = tmp_path / "account"
    account.mkdir()
    for name, text in {"token": f"{TOKEN}\n", "namespace": "ns\n", "ca.crt": CERTIFICATE.read_text()}.items():
        (account / name).write_text(text)
    templates = tmp_path / "templates.json"
    templates.write_text(json.dumps({"default": make_template()}))
    with serve_door(door) as url:
        yield KubernetesSettings(url=url, account=str(account), template=str(templates), timeout=5.0)


@pytest.fixture
def backend(settings: KubernetesSettings) -> KubernetesBackend:
    return KubernetesBackend(settings)


def make_executors(
    replicas: int = 1, gpus: int = 0, model: str = "Org/Model.A", checkpoint: str = "/m", gpu: str = ""
) -> DesiredExecutors:
    option = DeploymentOption(("thinker",), "llm", replicas, gpus, gpu=gpu)
    plan = ModelPlan("f", checkpoint, ("thinker",), {}, {"L+x": option}, {}, tasks={"thinker": "think"})
    (executors,) = desired_executors(Plan(1, 0, 0.0, {model: plan})).values()
    return executors


def dump_workloads(cluster: Api) -> str:
    """Return all workloads as requested, without resource versions."""
    workloads = [{**one, "metadata": {**one["metadata"], "resourceVersion": ""}} for one in cluster.objects.values()]
    return json.dumps(workloads, sort_keys=True)


async def test_what_is_started_is_a_workload_of_its_own_and_is_found_again(backend: KubernetesBackend, cluster: Api):
    one = make_executors(2, gpus=1)

    await backend.start(one)
    (workload,) = await backend.list_workloads()

    assert (workload.kind, workload.replicas, workload.mark) == (one.kind, 2, backend.workload_hash(one))
    ((name, manifest),) = cluster.of("Deployment").items()
    assert name == workload.name
    assert workload.name.startswith("omnibus-org-model-a-l-x-")
    assert len(workload.name) <= 46
    assert manifest["spec"]["minReadySeconds"] == 3
    assert manifest["spec"]["replicas"] == 2
    labels = manifest["spec"]["template"]["metadata"]["labels"]
    assert manifest["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert labels["team"] == "a"


async def test_an_executor_is_told_who_it_is(backend: KubernetesBackend, cluster: Api):
    await backend.start(make_executors(gpus=2, checkpoint="$(HOME)$"))

    (manifest,) = cluster.objects.values()
    container, other = manifest["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each for each in container["env"]}
    assert environment["OMNIBUS_BUS_URL"]["value"] == "nats://nats:4222"
    assert environment["OMNIBUS_EXECUTOR_MODEL"]["value"] == "Org/Model.A"
    assert environment["OMNIBUS_EXECUTOR_ORIGIN"]["value"] == make_executors(gpus=2, checkpoint="$(HOME)$").kind.origin
    assert environment["OMNIBUS_EXECUTOR_CHECKPOINT"]["value"] == "$$(HOME)$$"  # the cluster would put a variable in
    assert environment["OMNIBUS_EXECUTOR_ID"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    assert len(environment) == len(container["env"])
    assert container["resources"]["limits"] == {"memory": "1Gi", "nvidia.com/gpu": "2"}
    assert other == {"name": "other"}


async def test_a_node_selector_names_the_type_of_the_gpus_where_the_template_asks_for_it(
    settings: KubernetesSettings, cluster: Api
):
    asks = make_template()
    asks["spec"]["template"]["spec"]["nodeSelector"] = {"disk": "ssd", "accelerator": "nvidia-{gpu}"}
    Path(settings.template).write_text(json.dumps({"default": asks}))
    backend = KubernetesBackend(settings)
    one, two, none = make_executors(gpus=1, gpu="h100"), make_executors(gpus=1, gpu="a100"), make_executors(gpu="cpu")

    for each in (one, none):
        await backend.start(each)

    selectors = [manifest["spec"]["template"]["spec"]["nodeSelector"] for manifest in cluster.objects.values()]
    assert selectors == [{"disk": "ssd", "accelerator": "nvidia-h100"}, {"disk": "ssd"}]
    assert backend.workload_hash(one) != backend.workload_hash(two)


async def test_an_affinity_names_the_model_where_the_template_asks_for_it(settings: KubernetesSettings, cluster: Api):
    def make_term(model: str) -> dict:
        return {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {"release": "om", "omnibus/model": model}},
        }

    asks = make_template()
    near = {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": make_term("{model}")}]
    }
    asks["spec"]["template"]["spec"]["affinity"] = {"podAffinity": near}
    Path(settings.template).write_text(json.dumps({"default": asks}))

    await KubernetesBackend(settings).start(make_executors())

    (manifest,) = cluster.objects.values()
    pod = manifest["spec"]["template"]
    (affinity_term,) = pod["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert affinity_term == {"weight": 100, "podAffinityTerm": make_term(pod["metadata"]["labels"]["omnibus/model"])}
    assert pod["metadata"]["labels"]["omnibus/model"] == "Org-Model.A"


async def test_pods_of_a_cell_have_its_label_and_prefer_one_machine(backend: KubernetesBackend, cluster: Api):
    plan = ModelPlan("f", "/m", ("thinker",), {}, {"L": DeploymentOption(("thinker",), "llm")}, {})
    executors = desired_executors(Plan(1, 0, 0.0, {"m": join_cells([plan, plan])})).values()

    for each in executors:
        await backend.start(each)

    pods = [manifest["spec"]["template"] for manifest in cluster.objects.values()]
    assert [pod["metadata"]["labels"]["omnibus/cell"] for pod in pods] == ["c1", "c2"]
    for pod in pods:
        (near,) = pod["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        match_labels = near["podAffinityTerm"]["labelSelector"]["matchLabels"]
        assert match_labels.items() <= pod["metadata"]["labels"].items()
        assert match_labels.keys() == {"omnibus/release", "omnibus/model", "omnibus/cell"}


async def test_pods_prefer_the_nodes_of_the_plan(backend: KubernetesBackend, cluster: Api):
    placed, anywhere = make_executors(2, model="a"), make_executors(model="b")

    await backend.start(msgspec.structs.replace(placed, nodes={"n2": 1, "n1": 1}))
    await backend.start(anywhere)

    one, other = (manifest["spec"]["template"]["spec"] for manifest in cluster.objects.values())
    (near,) = one["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert near["preference"]["matchExpressions"] == [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1", "n2"]}
    ]
    assert "affinity" not in other
    assert backend.workload_hash(placed) == backend.workload_hash(msgspec.structs.replace(placed, nodes={"n1": 2}))


def test_without_such_a_selector_the_type_of_the_gpus_replaces_nobody(backend: KubernetesBackend):
    plain_executors, cpu_executors = make_executors(), make_executors(gpu="cpu")

    assert backend.workload_hash(plain_executors) == backend.workload_hash(cpu_executors)


async def test_replicas_are_patched_alone(backend: KubernetesBackend, cluster: Api):
    await backend.start(make_executors(1))
    (workload,) = await backend.list_workloads()
    before = dump_workloads(cluster)

    await backend.scale(workload, msgspec.structs.replace(make_executors(4), epoch=7))

    assert [(each.replicas, each.epoch) for each in await backend.list_workloads()] == [(4, 7)]
    assert cluster.changes[-1] == ("PATCH", "deployments")
    after = before.replace('"replicas": 1', '"replicas": 4').replace('"omnibus/epoch": "1"', '"omnibus/epoch": "7"')
    assert dump_workloads(cluster) == after


async def test_a_workload_that_is_gone_already_may_be_stopped(backend: KubernetesBackend, cluster: Api):
    await backend.start(make_executors())
    (workload,) = await backend.list_workloads()

    await backend.stop(workload)
    await backend.stop(workload)

    assert cluster.objects == {}


async def test_another_template_makes_another_mark_and_is_put_in_place(
    settings: KubernetesSettings, backend: KubernetesBackend, cluster: Api
):
    await backend.start(make_executors())
    Path(settings.template).write_text(json.dumps({"llm": make_template(image="omnibus-llm:2")}))
    newer = KubernetesBackend(settings)
    (workload,) = await newer.list_workloads()

    await newer.replace_executors(workload, make_executors(3))

    assert (
        backend.workload_hash(make_executors())
        == backend.workload_hash(make_executors(3))
        == workload.mark
        != newer.workload_hash(make_executors())
    )
    ((name, manifest),) = cluster.of("Deployment").items()
    assert name == workload.name
    assert manifest["spec"]["template"]["spec"]["containers"][0]["image"] == "omnibus-llm:2"
    assert [each.mark for each in await newer.list_workloads()] == [newer.workload_hash(make_executors())]


async def test_a_workload_may_become_one_of_the_other_kind(
    settings: KubernetesSettings, backend: KubernetesBackend, cluster: Api
):
    await backend.start(make_executors())
    Path(settings.template).write_text(json.dumps({"default": make_template("StatefulSet")}))
    newer = KubernetesBackend(settings)
    (workload,) = await newer.list_workloads()

    await newer.replace_executors(workload, make_executors())

    assert list(cluster.of("StatefulSet")) == [workload.name]
    assert cluster.of("Deployment") == {}


async def test_what_is_not_ours_is_not_seen(settings: KubernetesSettings, backend: KubernetesBackend, cluster: Api):
    await backend.start(make_executors())
    ((path, manifest),) = cluster.objects.items()
    for name, labels in {"strange": manifest["metadata"]["labels"], "other": {}}.items():
        there: Object = {"kind": "Deployment", "metadata": {"name": name, "labels": labels}, "spec": {}}
        cluster.objects[f"{path.rpartition('/')[0]}/{name}"] = there

    assert [each.name for each in await backend.list_workloads()] == [manifest["metadata"]["name"]]
    other = KubernetesSettings(
        **{**{name: getattr(settings, name) for name in settings.__struct_fields__}, "release": "b"}
    )
    assert await KubernetesBackend(other).list_workloads() == []


def test_names_differ_where_kinds_do():
    names = {
        manifests.workload_name("omnibus", make_executors(model=model, checkpoint=checkpoint).kind)
        for model, checkpoint in (("a.b", "/m"), ("a-b", "/m"), ("a.b", "/n"), ("a" * 200, "/m"), ("ä", "/m"))
    }

    assert len(names) == 5
    assert all(len(name) <= 46 and name[0].isalpha() and name[-1].isalnum() and name.islower() for name in names)


# Failures


async def test_the_certificate_is_checked(settings: KubernetesSettings, backend: KubernetesBackend):
    (Path(settings.account) / "ca.crt").unlink()

    with pytest.raises(ClusterUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await backend.list_workloads()


async def test_the_token_is_read_anew_each_time(settings: KubernetesSettings, backend: KubernetesBackend):
    token = Path(settings.account) / "token"
    token.write_text("an old one")
    with pytest.raises(ClusterRefused, match="answers 401 to GET .*: Unauthorized"):
        await backend.list_workloads()

    token.write_text(TOKEN)

    assert await backend.list_workloads() == []


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (403, b'{"message": "may not list"}', ClusterRefused, "may not list"),
        (422, b"no JSON", ClusterRefused, "no JSON"),
        (404, b"", ClusterRefused, "Not Found"),
        (429, b"{}", ClusterUnavailable, "429"),
        (500, b"[]", ClusterUnavailable, "500"),
        (302, b"", ClusterRefused, "302"),
        (200, b"[]", ClusterUnavailable, "not a JSON object"),
        (200, b"{", ClusterUnavailable, "no API server"),
    ],
)
async def test_a_refusal_is_typed_and_says_what_was_asked(
    backend: KubernetesBackend, door: Door, status: int, body: bytes, kind: type, message: str
):
    door.refusals.append((status, body))

    with pytest.raises(kind, match=message) as caught:
        await backend.list_workloads()

    assert isinstance(caught.value, Retryable) == (kind is ClusterUnavailable)
    assert door.tokens == {f"Bearer {TOKEN}"}


async def test_a_cluster_that_is_not_there_is_said(settings: KubernetesSettings):
    [port] = free_ports(1)
    values = {name: getattr(settings, name) for name in settings.__struct_fields__}
    backend = KubernetesBackend(KubernetesSettings(**{**values, "url": f"https://127.0.0.1:{port}"}))

    with pytest.raises(ClusterUnavailable, match=f"no API server at https://127.0.0.1:{port}"):
        await backend.list_workloads()


async def test_a_name_that_is_taken_is_tried_again(backend: KubernetesBackend):
    await backend.start(make_executors())

    with pytest.raises(ClusterUnavailable, match="already exists"):
        await backend.start(make_executors())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "templates.json"),
        ("{}", "must be a JSON object of Deployments"),
        ('{"llm": {}}', "llm must be a Deployment or StatefulSet"),
        ('{"llm": {"kind": "Pod"}}', "llm must be a Deployment or StatefulSet"),
        ('{"llm": {"kind": "Deployment", "spec": {"template": {"spec": {"containers": []}}}}}', "with a container"),
    ],
)
def test_templates_that_are_no_good_are_refused_at_the_start(settings: KubernetesSettings, text: str, message: str):
    Path(settings.template).write_text(text)

    with pytest.raises(BadRequest, match=message):
        KubernetesBackend(settings)


def test_a_service_without_template_is_said(settings: KubernetesSettings):
    Path(settings.template).write_text(json.dumps({"encoder": make_template()}))

    with pytest.raises(BadRequest, match="no template for 'llm'"):
        KubernetesBackend(settings).workload_hash(make_executors())


def test_without_a_namespace_nothing_is_guessed(settings: KubernetesSettings):
    (Path(settings.account) / "namespace").unlink()

    with pytest.raises(BadRequest, match="OMNIBUS_KUBERNETES_NAMESPACE"):
        KubernetesBackend(settings)


def test_only_known_backends_are_taken(settings: KubernetesSettings, monkeypatch: pytest.MonkeyPatch):
    for name in ("url", "account", "template"):
        monkeypatch.setenv(f"OMNIBUS_KUBERNETES_{name.upper()}", getattr(settings, name))

    assert reconcile.create_backend(PlannerSettings()) is None
    assert isinstance(reconcile.create_backend(PlannerSettings(reconcile="kubernetes")), KubernetesBackend)
    with pytest.raises(BadRequest, match="OMNIBUS_PLANNER_RECONCILE='nomad'"):
        reconcile.create_backend(PlannerSettings(reconcile="nomad"))
