"""Releases on several machines: pod placement, and sidecars that only their peers can reach."""

from typing import Any

import pytest

from omnibus_planner.reconcile.manifests import MODEL_PLACEHOLDER
from tests.kube.api import Object
from tests.kube.helm import Values
from tests.unit.chart.shapes import DECLARED, SHAPES, Renders, Site, env, pods, values

MUST, MAY = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"
EXECUTORS = {"encoder", "llm", "generator"}
SHARED = values(gateway__media__accessMode="ReadWriteMany", checkpoints__accessMode="ReadOnlyMany")


def by_part(objects: list[Object]) -> dict[str, Object]:
    """The pods of this release's services, by part."""
    return {part: pod for part, pod in pods(objects) if part not in ("nats", "valkey", "planner")}


def affinity(pod: Object, strength: str) -> list[Any]:
    """Terms of pod affinity."""
    return pod["spec"].get("affinity", {}).get("podAffinity", {}).get(strength, [])


def chosen_parts(objects: list[Object], term: Object) -> set[str]:
    """Parts whose pods match a term."""
    labels = term["labelSelector"]["matchLabels"].items()
    return {part for part, pod in pods(objects) if labels <= pod["metadata"]["labels"].items()}


# Placement


@pytest.mark.parametrize("asked", ["required", True])
def test_a_release_that_must_be_on_one_machine_is_and_opens_no_port(rendered: Renders, asked: Any):
    objects = rendered(values(placement__oneNode=asked))

    found = by_part(objects)
    (term,) = affinity(found["gateway"], MUST)
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert chosen_parts(objects, term) == {"gateway", *EXECUTORS}
    assert {part for part, pod in found.items() if affinity(pod, MUST) == [term]} == {"gateway", *EXECUTORS}
    assert [pod for pod in found.values() if affinity(pod, MAY)] == []
    sidecar = found["sidecar"]
    assert [port["name"] for port in sidecar["spec"]["containers"][0]["ports"]] == ["metrics"]
    assert not {"OMNIBUS_SIDECAR_HOST", "OMNIBUS_BUS_URL", "OMNIBUS_BUS_PASSWORD"} & env(sidecar).keys()


def test_executors_are_drawn_to_those_of_their_model_and_less_to_gateways(rendered: Renders):
    objects = rendered(SHARED)

    found = by_part(objects)
    assert [pod for pod in found.values() if affinity(pod, MUST)] == []
    terms = {term["weight"]: term["podAffinityTerm"] for term in affinity(found["llm"], MAY)}
    assert terms[100]["labelSelector"]["matchLabels"] == {
        "app.kubernetes.io/instance": "om",
        "omnibus/model": MODEL_PLACEHOLDER,
    }
    assert chosen_parts(objects, terms[10]) == {"gateway"}
    assert all(affinity(found[part], MAY) == affinity(found["llm"], MAY) for part in EXECUTORS)
    (near,) = affinity(found["gateway"], MAY)
    assert chosen_parts(objects, near["podAffinityTerm"]) == {"gateway", *EXECUTORS}
    assert not affinity(found["sidecar"], MAY)


@pytest.mark.parametrize("asked", ["off", False])
def test_a_release_that_may_be_anywhere_is_spread(rendered: Renders, asked: Any):
    found = by_part(rendered({**SHARED, "placement": {"oneNode": asked}}))

    assert [part for part, pod in found.items() if "affinity" in pod["spec"]] == []
    spread = {part for part, pod in found.items() if "topologySpreadConstraints" in pod["spec"]}
    assert spread == {"gateway", *EXECUTORS}
    assert "OMNIBUS_SIDECAR_HOST" in env(found["sidecar"])


def test_nothing_spreads_what_is_drawn_together(rendered: Renders):
    found = by_part(rendered(SHARED))

    assert [part for part, pod in found.items() if "topologySpreadConstraints" in pod["spec"]] == []


@pytest.mark.parametrize(
    ("claim", "kept"),
    [
        (values(gateway__media__accessMode="ReadWriteMany"), EXECUTORS),
        (values(checkpoints__accessMode="ReadWriteMany"), {"gateway"}),
        (values(checkpoints={"kind": "hostPath", "hostPath": "/models"}, gateway__media__kind="none"), set()),
        (values(checkpoints__claim="mine", gateway__media__claim="mine"), {"gateway", *EXECUTORS}),
    ],
)
def test_pods_that_share_a_claim_of_one_machine_are_kept_there(rendered: Renders, claim: Values, kept: set[str]):
    objects = rendered(claim)

    found = {part: affinity(pod, MUST) for part, pod in by_part(objects).items() if affinity(pod, MUST)}
    assert found.keys() == kept
    for part, (term,) in found.items():
        assert chosen_parts(objects, term) == ({"gateway"} if part == "gateway" else EXECUTORS)


def test_executors_that_the_planner_does_not_run_are_drawn_to_their_model_too(rendered: Renders):
    odd = {"models": {"Org/Model A!": DECLARED["models"]["qwen"]}}
    objects = rendered(values(models=odd, executors__scaling="none", checkpoints__accessMode="ReadWriteMany"))

    found = [pod for part, pod in pods(objects) if part in EXECUTORS]
    assert {pod["metadata"]["labels"]["omnibus/option"] for pod in found} == {"E", "L"}
    for pod in found:
        (model,) = (term for term in affinity(pod, MAY) if term["weight"] == 100)
        chosen = model["podAffinityTerm"]["labelSelector"]["matchLabels"]
        assert chosen["omnibus/model"] == "Org-Model-A"
        assert all(chosen.items() <= each["metadata"]["labels"].items() for each in found)


# Sidecars


@pytest.mark.parametrize("shape", SHAPES)
def test_no_sidecar_listens_without_a_secret(rendered: Renders, shape: str):
    sidecar = by_part(rendered(SHAPES[shape]))["sidecar"]
    container, told = sidecar["spec"]["containers"][0], env(sidecar)
    volumes = {each["name"]: each for each in sidecar["spec"]["volumes"]}
    mounts = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}

    listens = shape != "one_node"
    assert ("OMNIBUS_SIDECAR_HOST" in told) == ("OMNIBUS_SIDECAR_SECRET_FILE" in told) == listens
    if listens:
        assert told["OMNIBUS_SIDECAR_HOST"] == {"fieldRef": {"fieldPath": "status.podIP"}}
        directory, _, file = told["OMNIBUS_SIDECAR_SECRET_FILE"].rpartition("/")
        secret = mounts[directory]["secret"]
        assert secret["items"] == [{"key": "nodes", "path": file}]
        assert secret["defaultMode"] == 0o440
        assert {"name": "peers", "containerPort": int(told["OMNIBUS_SIDECAR_PORT"])} in container["ports"]
        assert {"OMNIBUS_BUS_URL"} <= told.keys()


def test_certificates_of_nodes_come_from_their_secret_and_reach_sidecars_alone(rendered: Renders):
    found = by_part(rendered(SHAPES["many_nodes"]))

    told = {part: {name for name in env(pod) if name.startswith("OMNIBUS_SIDECAR_TLS_")} for part, pod in found.items()}
    assert {part for part, names in told.items() if names} == {"sidecar"}
    assert {env(found["sidecar"])[name] for name in told["sidecar"]} == {
        f"/etc/omnibus/tls/{file}" for file in ("ca.crt", "tls.crt", "tls.key")
    }
    assert {"name": "tls", "secret": {"secretName": "nodes-tls"}} in found["sidecar"]["spec"]["volumes"]


def test_the_secret_of_nodes_reaches_sidecars_alone(rendered: Renders):
    found = by_part(rendered({}))

    holders = {part for part, pod in found.items() for volume in pod["spec"]["volumes"] if volume["name"] == "nodes"}
    assert holders == {"sidecar"}


async def test_a_secret_of_your_own_that_lacks_the_key_of_nodes_is_refused_before_anything_is_made(site: Site):
    made = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mine"}, "data": {"gateway": "aw=="}}
    path = "/api/v1/namespaces/ns/secrets"
    site.api.answer("POST", path, {}, made, "application/json")
    own = values(credentials__existingSecret="mine")

    with pytest.raises(Exception, match="secret mine has no key nodes.*openssl rand"):
        await site.helm.install("om", own)
    assert site.api.of("DaemonSet") == {}
    made["data"]["nodes"] = "aw=="
    site.api.answer("PUT", f"{path}/mine", {}, made, "application/json")
    await site.helm.install("om", own)
    assert site.api.of("DaemonSet").keys() == {"om-sidecar"}


async def test_an_upgrade_from_a_release_without_the_secret_of_nodes_adds_it_and_keeps_the_others(site: Site):
    await site.helm.install("om", values(placement__oneNode="required"))
    secret = site.api.of("Secret")["om-credentials"]
    before = {key: word for key, word in secret["data"].items() if key != "nodes"}
    secret["data"] = dict(before)

    await site.helm.upgrade("om", {})
    first = dict(site.api.of("Secret")["om-credentials"]["data"])
    await site.helm.upgrade("om", {"gateway": {"replicas": 3}})

    assert before.items() <= first.items()
    assert first["nodes"]
    assert site.api.of("Secret")["om-credentials"]["data"] == first
