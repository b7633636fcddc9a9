"""Releases on several machines: pod placement, and sidecars that only their peers can reach."""

from typing import Any

import pytest

from omnibus_planner.reconcile.manifests import MODEL_PLACEHOLDER
from tests.kube.api import Object
from tests.kube.helm import Values
from tests.unit.chart.shapes import DECLARED, SHAPES, ChartSite, Renders, iterate_pods, make_values, read_env

MUST, MAY = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"
EXECUTORS = {"encoder", "llm", "generator"}
SHARED = make_values(gateway__media__accessMode="ReadWriteMany", checkpoints__accessMode="ReadOnlyMany")


def by_part(objects: list[Object]) -> dict[str, Object]:
    """The pods of this release's services, by part."""
    return {part: pod for part, pod in iterate_pods(objects) if part not in ("nats", "valkey", "planner")}


def affinity_terms(pod: Object, strength: str) -> list[Any]:
    """Terms of pod affinity."""
    return pod["spec"].get("affinity", {}).get("podAffinity", {}).get(strength, [])


def chosen_parts(objects: list[Object], term: Object) -> set[str]:
    """Parts whose pods match a term."""
    labels = term["labelSelector"]["matchLabels"].items()
    return {part for part, pod in iterate_pods(objects) if labels <= pod["metadata"]["labels"].items()}


# Placement


@pytest.mark.parametrize("one_node", ["required", True])
def test_a_release_that_must_be_on_one_machine_is_and_opens_no_port(render_chart: Renders, one_node: Any):
    objects = render_chart(make_values(placement__oneNode=one_node))

    pods_by_part = by_part(objects)
    (term,) = affinity_terms(pods_by_part["gateway"], MUST)
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert chosen_parts(objects, term) == {"gateway", *EXECUTORS}
    assert {part for part, pod in pods_by_part.items() if affinity_terms(pod, MUST) == [term]} == {
        "gateway",
        *EXECUTORS,
    }
    assert [pod for pod in pods_by_part.values() if affinity_terms(pod, MAY)] == []
    sidecar = pods_by_part["sidecar"]
    assert [port["name"] for port in sidecar["spec"]["containers"][0]["ports"]] == ["metrics"]
    assert not {"OMNIBUS_SIDECAR_HOST", "OMNIBUS_BUS_URL", "OMNIBUS_BUS_PASSWORD"} & read_env(sidecar).keys()


def test_executors_are_drawn_to_those_of_their_model_and_less_to_gateways(render_chart: Renders):
    objects = render_chart(SHARED)

    pods_by_part = by_part(objects)
    assert [pod for pod in pods_by_part.values() if affinity_terms(pod, MUST)] == []
    terms = {term["weight"]: term["podAffinityTerm"] for term in affinity_terms(pods_by_part["llm"], MAY)}
    assert terms[100]["labelSelector"]["matchLabels"] == {
        "app.kubernetes.io/instance": "om",
        "omnibus/model": MODEL_PLACEHOLDER,
    }
    assert chosen_parts(objects, terms[10]) == {"gateway"}
    assert all(
        affinity_terms(pods_by_part[part], MAY) == affinity_terms(pods_by_part["llm"], MAY) for part in EXECUTORS
    )
    (near,) = affinity_terms(pods_by_part["gateway"], MAY)
    assert chosen_parts(objects, near["podAffinityTerm"]) == {"gateway", *EXECUTORS}
    assert not affinity_terms(pods_by_part["sidecar"], MAY)


@pytest.mark.parametrize("one_node", ["off", False])
def test_a_release_that_may_be_anywhere_is_spread(render_chart: Renders, one_node: Any):
    pods_by_part = by_part(render_chart({**SHARED, "placement": {"oneNode": one_node}}))

    assert [part for part, pod in pods_by_part.items() if "affinity" in pod["spec"]] == []
    spread = {part for part, pod in pods_by_part.items() if "topologySpreadConstraints" in pod["spec"]}
    assert spread == {"gateway", *EXECUTORS}
    assert "OMNIBUS_SIDECAR_HOST" in read_env(pods_by_part["sidecar"])


def test_nothing_spreads_what_is_drawn_together(render_chart: Renders):
    pods_by_part = by_part(render_chart(SHARED))

    assert [part for part, pod in pods_by_part.items() if "topologySpreadConstraints" in pod["spec"]] == []


@pytest.mark.parametrize(
    ("claim", "pinned_parts"),
    [
        (make_values(gateway__media__accessMode="ReadWriteMany"), EXECUTORS),
        (make_values(checkpoints__accessMode="ReadWriteMany"), {"gateway"}),
        (make_values(checkpoints={"kind": "hostPath", "hostPath": "/models"}, gateway__media__kind="none"), set()),
        (make_values(checkpoints__claim="mine", gateway__media__claim="mine"), {"gateway", *EXECUTORS}),
    ],
)
def test_pods_that_share_a_claim_of_one_machine_are_kept_there(
    render_chart: Renders, claim: Values, pinned_parts: set[str]
):
    objects = render_chart(claim)

    terms_by_part = {
        part: affinity_terms(pod, MUST) for part, pod in by_part(objects).items() if affinity_terms(pod, MUST)
    }
    assert terms_by_part.keys() == pinned_parts
    for part, (term,) in terms_by_part.items():
        assert chosen_parts(objects, term) == ({"gateway"} if part == "gateway" else EXECUTORS)


def test_executors_that_the_planner_does_not_run_are_drawn_to_their_model_too(render_chart: Renders):
    odd = {"models": {"Org/Model A!": DECLARED["models"]["qwen"]}}
    objects = render_chart(make_values(models=odd, executors__scaling="none", checkpoints__accessMode="ReadWriteMany"))

    executor_pods = [pod for part, pod in iterate_pods(objects) if part in EXECUTORS]
    assert {pod["metadata"]["labels"]["omnibus/option"] for pod in executor_pods} == {"E", "L"}
    for pod in executor_pods:
        (model,) = (term for term in affinity_terms(pod, MAY) if term["weight"] == 100)
        labels = model["podAffinityTerm"]["labelSelector"]["matchLabels"]
        assert labels["omnibus/model"] == "Org-Model-A"
        assert all(labels.items() <= each["metadata"]["labels"].items() for each in executor_pods)


# Sidecars


@pytest.mark.parametrize("shape", SHAPES)
def test_no_sidecar_listens_without_a_secret(render_chart: Renders, shape: str):
    sidecar = by_part(render_chart(SHAPES[shape]))["sidecar"]
    container, environment = sidecar["spec"]["containers"][0], read_env(sidecar)
    volumes = {each["name"]: each for each in sidecar["spec"]["volumes"]}
    mounts = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}

    listens = shape != "one_node"
    assert ("OMNIBUS_SIDECAR_HOST" in environment) == ("OMNIBUS_SIDECAR_SECRET_FILE" in environment) == listens
    if listens:
        assert environment["OMNIBUS_SIDECAR_HOST"] == {"fieldRef": {"fieldPath": "status.podIP"}}
        directory, _, file = environment["OMNIBUS_SIDECAR_SECRET_FILE"].rpartition("/")
        secret = mounts[directory]["secret"]
        assert secret["items"] == [{"key": "nodes", "path": file}]
        assert secret["defaultMode"] == 0o440
        assert {"name": "peers", "containerPort": int(environment["OMNIBUS_SIDECAR_PORT"])} in container["ports"]
        assert {"OMNIBUS_BUS_URL"} <= environment.keys()


def test_certificates_of_nodes_come_from_their_secret_and_reach_sidecars_alone(render_chart: Renders):
    pods_by_part = by_part(render_chart(SHAPES["many_nodes"]))

    tls_variables = {
        part: {name for name in read_env(pod) if name.startswith("OMNIBUS_SIDECAR_TLS_")}
        for part, pod in pods_by_part.items()
    }
    assert {part for part, names in tls_variables.items() if names} == {"sidecar"}
    assert {read_env(pods_by_part["sidecar"])[name] for name in tls_variables["sidecar"]} == {
        f"/etc/omnibus/tls/{file}" for file in ("ca.crt", "tls.crt", "tls.key")
    }
    assert {"name": "tls", "secret": {"secretName": "nodes-tls"}} in pods_by_part["sidecar"]["spec"]["volumes"]


def test_the_secret_of_nodes_reaches_sidecars_alone(render_chart: Renders):
    pods_by_part = by_part(render_chart({}))

    holders = {
        part for part, pod in pods_by_part.items() for volume in pod["spec"]["volumes"] if volume["name"] == "nodes"
    }
    assert holders == {"sidecar"}


async def test_a_secret_of_your_own_that_lacks_the_key_of_nodes_is_refused_before_anything_is_made(site: ChartSite):
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mine"}, "data": {"gateway": "aw=="}}
    path = "/api/v1/namespaces/ns/secrets"
    site.api.answer("POST", path, {}, secret, "application/json")
    own = make_values(credentials__existingSecret="mine")

    with pytest.raises(Exception, match="secret mine has no key nodes.*openssl rand"):
        await site.helm.install("om", own)
    assert site.api.of("DaemonSet") == {}
    secret["data"]["nodes"] = "aw=="
    site.api.answer("PUT", f"{path}/mine", {}, secret, "application/json")
    await site.helm.install("om", own)
    assert site.api.of("DaemonSet").keys() == {"om-sidecar"}


async def test_an_upgrade_from_a_release_without_the_secret_of_nodes_adds_it_and_keeps_the_others(site: ChartSite):
    await site.helm.install("om", make_values(placement__oneNode="required"))
    secret = site.api.of("Secret")["om-credentials"]
    before = {key: word for key, word in secret["data"].items() if key != "nodes"}
    secret["data"] = dict(before)

    await site.helm.upgrade("om", {})
    first = dict(site.api.of("Secret")["om-credentials"]["data"])
    await site.helm.upgrade("om", {"gateway": {"replicas": 3}})

    assert before.items() <= first.items()
    assert first["nodes"]
    assert site.api.of("Secret")["om-credentials"]["data"] == first
