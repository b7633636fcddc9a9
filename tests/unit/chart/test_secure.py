"""Security of the chart's pods: denied privileges and allowed connections."""

import json
from ipaddress import ip_network
from typing import Any

import pytest
import yaml

from omnibus.bus import permissions
from tests.kube.api import Object
from tests.kube.helm import CHART
from tests.kube.values import USERS
from tests.unit.chart.shapes import SHAPES, Renders, env, of, pods, values

CONTAINER = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_no_container_may_do_more_than_it_must(rendered: Renders, shape: str):
    for part, pod in pods(rendered(SHAPES[shape])):
        spec = pod["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] == (part == "planner")
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            assert container["securityContext"] == CONTAINER


@pytest.mark.parametrize("shape", SHAPES)
def test_every_container_has_limits_and_every_service_says_how_it_is(rendered: Renders, shape: str):
    for part, pod in pods(rendered(SHAPES[shape])):
        for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}, part
            assert "memory" in container["resources"]["limits"], part
        container = pod["spec"]["containers"][0]
        worker = container.get("command") == ["python", "-m", "worker"]
        assert {"readinessProbe", "livenessProbe"} <= container.keys() or worker, part
        assert pod["spec"].get("terminationGracePeriodSeconds", 60) >= 20


def test_only_the_memory_of_the_machine_is_shared_with_it(rendered: Renders):
    for part, pod in pods(rendered(SHAPES["everything"])):
        hosts = [volume["hostPath"]["path"] for volume in pod["spec"]["volumes"] if "hostPath" in volume]
        assert hosts == ([] if part in ("planner", "nats", "valkey") else ["/dev/shm"])


def test_everybody_on_a_machine_meets_at_the_same_place(rendered: Renders):
    found = {part: env(pod) for part, pod in pods(rendered(SHAPES["cpu"])) if part not in ("nats", "valkey", "planner")}

    for name in ("OMNIBUS_SIDECAR_SOCKET", "OMNIBUS_SIDECAR_NODE"):
        assert len({told[name] for told in found.values()}) == 1
    assert len(found["sidecar"]["OMNIBUS_SIDECAR_SOCKET"]) < 100
    assert found["sidecar"]["NODE"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


# Secrets


def test_passwords_are_in_the_secret_and_nowhere_else(rendered: Renders):
    objects = rendered(SHAPES["everything"])

    (secret,) = of(objects, "Secret").values()
    assert set(secret["data"]) == {*permissions.permissions_by_user(), "store", "signing", "admin", "salt", "nodes"}
    rest = json.dumps([each for each in objects if each["kind"] != "Secret"])
    assert not [word for word in secret["data"].values() if word in rest]
    for part, pod in pods(objects):
        for name, value in env(pod).items():
            assert not name.endswith(("PASSWORD", "TOKEN", "SALT", "STORE_SECRET")) or set(value) == {"secretKeyRef"}, (
                part,
                name,
            )


def test_a_secret_of_your_own_has_all_that_is_asked_of_it(rendered: Renders):
    objects = rendered(values(credentials__existingSecret="mine"))

    asked = [
        value["secretKeyRef"] for _, pod in pods(objects) for value in env(pod).values() if "secretKeyRef" in value
    ]
    assert of(objects, "Secret") == {}
    assert {each["name"] for each in asked} == {"mine"}
    assert {each["key"] for each in asked} == {*permissions.permissions_by_user(), "store", "signing", "admin", "salt"}
    files = [volume["secret"] for _, pod in pods(objects) for volume in pod["spec"]["volumes"] if "secret" in volume]
    assert [(each["secretName"], [item["key"] for item in each["items"]]) for each in files] == [("mine", ["nodes"])]


def test_users_of_the_bus_are_those_of_the_code():
    assert USERS.read_text() == permissions.server_config(), "run python -m tests.kube.values"


def test_each_service_has_a_user_of_its_own_on_the_bus(rendered: Renders):
    users = {part: env(pod).get("OMNIBUS_BUS_USER") for part, pod in pods(rendered({}))}

    assert {part: user for part, user in users.items() if user} == {
        part: part for part in ("gateway", "planner", "sidecar", "encoder", "llm", "generator")
    }


def test_certificates_and_keys_are_mounted_where_services_look(rendered: Renders):
    asked = values(
        gateway={"tls": {"secret": "web"}, "keys": {"secret": "api-keys"}},
        nats__tls={"caSecret": "ca", "serverSecret": "bus"},
        valkey__tls={"caSecret": "ca", "serverSecret": "store"},
    )

    found = dict(pods(rendered(asked)))
    for part, pod in found.items():
        spec, container = pod["spec"], pod["spec"]["containers"][0]
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        files = [value for value in env(pod).values() if isinstance(value, str) and value.startswith("/etc/omnibus/")]
        for path in (path for path in files if "." in path.rpartition("/")[2]):
            assert mounts[path.rpartition("/")[0]] in volumes, (part, path)
    gateway = env(found["gateway"])
    assert gateway["OMNIBUS_GATEWAY_KEYS_FILE"] == "/etc/omnibus/keys/keys.json"
    assert gateway["OMNIBUS_STORE_URL"].startswith("rediss://:$(STORE_PASSWORD)@")
    assert env(found["llm"])["OMNIBUS_BUS_TLS_CA"] == "/etc/omnibus/bus/ca.crt"


def test_an_image_may_be_pinned_by_its_digest(rendered: Renders):
    digest = f"sha256:{'a' * 64}"
    found = dict(pods(rendered(values(image={"tag": "7", "digests": {"gateway": digest}}))))

    assert found["gateway"]["spec"]["containers"][0]["image"] == f"omnibus-gateway:7@{digest}"
    assert found["planner"]["spec"]["containers"][0]["image"] == "omnibus-planner:7"


# Connections


def allows(objects: list[Object], part: str, way: str) -> list[tuple[Any, int]]:
    """Return the parts or networks, with ports, that ``part`` may reach or accept."""
    policies = [each["spec"] for each in of(objects, "NetworkPolicy").values()]
    labels = next(pod["metadata"]["labels"] for name, pod in pods(objects) if name == part)
    found: list[tuple[Any, int]] = []
    for policy in (each for each in policies if each["podSelector"]["matchLabels"].items() <= labels.items()):
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        for rule in policy[way]:
            peers = rule.get("to" if way == "egress" else "from", [None])
            found += [(_who(peer), port["port"]) for peer in peers for port in rule["ports"]]
    return found


def _who(peer: Any) -> str:
    if peer is None:
        return "anyone"
    labels = peer.get("podSelector", {}).get("matchLabels", {})
    network = peer.get("ipBlock", {}).get("cidr")
    return (
        network
        or labels.get("app.kubernetes.io/component")
        or next(each for each in labels if each.startswith("omnibus/"))
    )


DNS = [("anyone", 53), ("anyone", 53)]


@pytest.mark.parametrize("part", ["encoder", "llm", "generator"])
def test_executors_reach_the_bus_and_nothing_else(rendered: Renders, part: str):
    assert allows(rendered(SHAPES["cpu"]), part, "egress") == [*DNS, ("nats", 4222)]
    assert allows(rendered(SHAPES["cpu"]), part, "ingress") == [("anyone", 9090)]


def test_executors_that_download_reach_the_web_as_well(rendered: Renders):
    assert ("0.0.0.0/0", 443) in allows(rendered(SHAPES["everything"]), "llm", "egress")


def test_gateways_reach_the_web_but_no_private_network(rendered: Renders):
    for closed, excepts in ((None, True), ([], False)):
        asked = values(networkPolicy__closedTo=closed) if closed is not None else {}
        policies = of(rendered(asked), "NetworkPolicy")
        web = next(
            rule
            for rule in policies["om-gateway"]["spec"]["egress"]
            if {"port": 443, "protocol": "TCP"} in rule["ports"]
        )
        blocks = {peer["ipBlock"]["cidr"]: peer["ipBlock"].get("except", []) for peer in web["to"]}

        assert blocks.keys() == {"0.0.0.0/0", "::/0"}
        assert all(bool(found) is excepts for found in blocks.values())
        for cidr, found in blocks.items():
            assert all(ip_network(each).subnet_of(ip_network(cidr)) for each in found)
        assert ("169.254.0.0/16" in blocks["0.0.0.0/0"]) is excepts


def test_gateways_and_planners_alone_have_what_signs_records(rendered: Renders):
    found = {part for part, pod in pods(rendered(SHAPES["cpu"])) if "OMNIBUS_STORE_SECRET" in env(pod)}

    assert found == {"gateway", "planner"}


def test_executors_run_tasks_from_below_the_directory_of_apps_alone(rendered: Renders):
    told = {part: env(pod) for part, pod in pods(rendered(values(gateway__apps={"claim": "apps"})))}

    assert told["llm"]["OMNIBUS_EXECUTOR_APPS_DIR"] == told["gateway"]["OMNIBUS_GATEWAY_APPS_DIR"]
    assert "OMNIBUS_EXECUTOR_APPS_DIR" not in env(dict(pods(rendered({})))["llm"])


def test_servers_are_reached_by_services_alone_and_reach_nobody(rendered: Renders):
    objects = rendered({})

    services = ["gateway", "planner", "omnibus/executors", "sidecar"]
    assert allows(objects, "nats", "ingress") == [(part, 4222) for part in services]
    assert allows(objects, "valkey", "ingress") == [("gateway", 6379), ("planner", 6379)]
    assert allows(objects, "nats", "egress") == allows(objects, "valkey", "egress") == []


def test_sidecars_reach_each_other_and_the_bus_and_are_reached_by_nobody_else(rendered: Renders):
    objects, alone = rendered({}), rendered(SHAPES["one_node"])

    assert allows(objects, "sidecar", "ingress") == [("anyone", 9090), ("sidecar", 7400)]
    assert allows(objects, "sidecar", "egress") == [*DNS, ("nats", 4222), ("sidecar", 7400)]
    others = [part for part, _ in pods(objects) if part != "sidecar"]
    assert [part for part in others if 7400 in {port for _, port in allows(objects, part, "egress")}] == []
    assert allows(alone, "sidecar", "ingress") == [("anyone", 9090)]
    assert allows(alone, "sidecar", "egress") == DNS
    assert ("sidecar", 4222) not in allows(alone, "nats", "ingress")


def test_servers_of_your_own_are_reached_at_their_ports(rendered: Renders):
    objects = rendered(SHAPES["own_servers"])

    assert {port for _, port in allows(objects, "planner", "egress")} == {53, 4333, 6380, 443, 6443}
    assert {port for _, port in allows(objects, "llm", "egress")} == {53, 4333}
    assert {"nats", "valkey"}.isdisjoint(part for part, _ in pods(objects))


def test_every_pod_is_under_a_policy(rendered: Renders):
    for shape in ("gpu", "fixed_groups", "keda"):
        objects = rendered(SHAPES[shape])
        assert all(allows(objects, part, "ingress") for part, _ in pods(objects))


def test_overlays_say_nothing_that_the_chart_does_not_know():
    whole = yaml.safe_load((CHART / "values.yaml").read_text())
    for path in sorted(CHART.glob("values-*.yaml")):
        assert yaml.safe_load(path.read_text()).keys() <= whole.keys()
