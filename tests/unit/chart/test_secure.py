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
from tests.unit.chart.shapes import SHAPES, Renders, iterate_pods, make_values, read_env, select_kind

CONTAINER = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_no_container_may_do_more_than_it_must(render_chart: Renders, shape: str):
    for part, pod in iterate_pods(render_chart(SHAPES[shape])):
        spec = pod["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] == (part == "planner")
        for container in (*spec["containers"], *spec.get("initContainers", ())):
            assert container["securityContext"] == CONTAINER


@pytest.mark.parametrize("shape", SHAPES)
def test_every_container_has_limits_and_every_service_says_how_it_is(render_chart: Renders, shape: str):
    for part, pod in iterate_pods(render_chart(SHAPES[shape])):
        for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}, part
            assert "memory" in container["resources"]["limits"], part
        container = pod["spec"]["containers"][0]
        worker = container.get("command") == ["python", "-m", "worker"]
        assert {"readinessProbe", "livenessProbe"} <= container.keys() or worker, part
        assert pod["spec"].get("terminationGracePeriodSeconds", 60) >= 20


def test_only_the_memory_of_the_machine_is_shared_with_it(render_chart: Renders):
    for part, pod in iterate_pods(render_chart(SHAPES["everything"])):
        hosts = [volume["hostPath"]["path"] for volume in pod["spec"]["volumes"] if "hostPath" in volume]
        assert hosts == ([] if part in ("planner", "nats", "valkey") else ["/dev/shm"])


def test_everybody_on_a_machine_meets_at_the_same_place(render_chart: Renders):
    environments = {
        part: read_env(pod)
        for part, pod in iterate_pods(render_chart(SHAPES["cpu"]))
        if part not in ("nats", "valkey", "planner")
    }

    for name in ("OMNIBUS_SIDECAR_SOCKET", "OMNIBUS_SIDECAR_NODE"):
        assert len({environment[name] for environment in environments.values()}) == 1
    assert len(environments["sidecar"]["OMNIBUS_SIDECAR_SOCKET"]) < 100
    assert environments["sidecar"]["NODE"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


# Secrets


def test_passwords_are_in_the_secret_and_nowhere_else(render_chart: Renders):
    objects = render_chart(SHAPES["everything"])

    (secret,) = select_kind(objects, "Secret").values()
    assert set(secret["data"]) == {*permissions.permissions_by_user(), "store", "signing", "admin", "salt", "nodes"}
    rest = json.dumps([each for each in objects if each["kind"] != "Secret"])
    assert not [word for word in secret["data"].values() if word in rest]
    for part, pod in iterate_pods(objects):
        for name, value in read_env(pod).items():
            assert not name.endswith(("PASSWORD", "TOKEN", "SALT", "STORE_SECRET")) or set(value) == {"secretKeyRef"}, (
                part,
                name,
            )


def test_a_secret_of_your_own_has_all_that_is_asked_of_it(render_chart: Renders):
    objects = render_chart(make_values(credentials__existingSecret="mine"))

    secret_keys = [
        value["secretKeyRef"]
        for _, pod in iterate_pods(objects)
        for value in read_env(pod).values()
        if "secretKeyRef" in value
    ]
    assert select_kind(objects, "Secret") == {}
    assert {each["name"] for each in secret_keys} == {"mine"}
    assert {each["key"] for each in secret_keys} == {
        *permissions.permissions_by_user(),
        "store",
        "signing",
        "admin",
        "salt",
    }
    files = [
        volume["secret"] for _, pod in iterate_pods(objects) for volume in pod["spec"]["volumes"] if "secret" in volume
    ]
    assert [(each["secretName"], [item["key"] for item in each["items"]]) for each in files] == [("mine", ["nodes"])]


def test_users_of_the_bus_are_those_of_the_code():
    assert USERS.read_text() == permissions.server_config(), "run python -m tests.kube.values"


def test_each_service_has_a_user_of_its_own_on_the_bus(render_chart: Renders):
    users = {part: read_env(pod).get("OMNIBUS_BUS_USER") for part, pod in iterate_pods(render_chart({}))}

    assert {part: user for part, user in users.items() if user} == {
        part: part for part in ("gateway", "planner", "sidecar", "encoder", "llm", "generator")
    }


def test_certificates_and_keys_are_mounted_where_services_look(render_chart: Renders):
    chart_values = make_values(
        gateway={"tls": {"secret": "web"}, "keys": {"secret": "api-keys"}},
        nats__tls={"caSecret": "ca", "serverSecret": "bus"},
        valkey__tls={"caSecret": "ca", "serverSecret": "store"},
    )

    pods_by_part = dict(iterate_pods(render_chart(chart_values)))
    for part, pod in pods_by_part.items():
        spec, container = pod["spec"], pod["spec"]["containers"][0]
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        files = [
            value for value in read_env(pod).values() if isinstance(value, str) and value.startswith("/etc/omnibus/")
        ]
        for path in (path for path in files if "." in path.rpartition("/")[2]):
            assert mounts[path.rpartition("/")[0]] in volumes, (part, path)
    gateway = read_env(pods_by_part["gateway"])
    assert gateway["OMNIBUS_GATEWAY_KEYS_FILE"] == "/etc/omnibus/keys/keys.json"
    assert gateway["OMNIBUS_STORE_URL"].startswith("rediss://:$(STORE_PASSWORD)@")
    assert read_env(pods_by_part["llm"])["OMNIBUS_BUS_TLS_CA"] == "/etc/omnibus/bus/ca.crt"


def test_an_image_may_be_pinned_by_its_digest(render_chart: Renders):
    digest = f"sha256:{'a' * 64}"
    pods_by_part = dict(iterate_pods(render_chart(make_values(image={"tag": "7", "digests": {"gateway": digest}}))))

    assert pods_by_part["gateway"]["spec"]["containers"][0]["image"] == f"omnibus-gateway:7@{digest}"
    assert pods_by_part["planner"]["spec"]["containers"][0]["image"] == "omnibus-planner:7"


# Connections


def allowed_peers(objects: list[Object], part: str, way: str) -> list[tuple[Any, int]]:
    """Return the parts or networks, with ports, that ``part`` may reach or accept."""
    policies = [each["spec"] for each in select_kind(objects, "NetworkPolicy").values()]
    labels = next(pod["metadata"]["labels"] for name, pod in iterate_pods(objects) if name == part)
    peer_ports: list[tuple[Any, int]] = []
    for policy in (each for each in policies if each["podSelector"]["matchLabels"].items() <= labels.items()):
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        for rule in policy[way]:
            peers = rule.get("to" if way == "egress" else "from", [None])
            peer_ports += [(_name_peer(peer), port["port"]) for peer in peers for port in rule["ports"]]
    return peer_ports


def _name_peer(peer: Any) -> str:
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
def test_executors_reach_the_bus_and_nothing_else(render_chart: Renders, part: str):
    assert allowed_peers(render_chart(SHAPES["cpu"]), part, "egress") == [*DNS, ("nats", 4222)]
    assert allowed_peers(render_chart(SHAPES["cpu"]), part, "ingress") == [("anyone", 9090)]


def test_executors_that_download_reach_the_web_as_well(render_chart: Renders):
    assert ("0.0.0.0/0", 443) in allowed_peers(render_chart(SHAPES["everything"]), "llm", "egress")


def test_gateways_reach_the_web_but_no_private_network(render_chart: Renders):
    for closed_networks, excepts in ((None, True), ([], False)):
        chart_values = make_values(networkPolicy__closedTo=closed_networks) if closed_networks is not None else {}
        policies = select_kind(render_chart(chart_values), "NetworkPolicy")
        web = next(
            rule
            for rule in policies["om-gateway"]["spec"]["egress"]
            if {"port": 443, "protocol": "TCP"} in rule["ports"]
        )
        blocks = {peer["ipBlock"]["cidr"]: peer["ipBlock"].get("except", []) for peer in web["to"]}

        assert blocks.keys() == {"0.0.0.0/0", "::/0"}
        assert all(bool(exceptions) is excepts for exceptions in blocks.values())
        for cidr, excluded_networks in blocks.items():
            assert all(ip_network(each).subnet_of(ip_network(cidr)) for each in excluded_networks)
        assert ("169.254.0.0/16" in blocks["0.0.0.0/0"]) is excepts


def test_gateways_and_planners_alone_have_what_signs_records(render_chart: Renders):
    parts = {part for part, pod in iterate_pods(render_chart(SHAPES["cpu"])) if "OMNIBUS_STORE_SECRET" in read_env(pod)}

    assert parts == {"gateway", "planner"}


def test_executors_run_tasks_from_below_the_directory_of_apps_alone(render_chart: Renders):
    environments = {
        part: read_env(pod) for part, pod in iterate_pods(render_chart(make_values(gateway__apps={"claim": "apps"})))
    }

    assert environments["llm"]["OMNIBUS_EXECUTOR_APPS_DIR"] == environments["gateway"]["OMNIBUS_GATEWAY_APPS_DIR"]
    assert "OMNIBUS_EXECUTOR_APPS_DIR" not in read_env(dict(iterate_pods(render_chart({})))["llm"])


def test_servers_are_reached_by_services_alone_and_reach_nobody(render_chart: Renders):
    objects = render_chart({})

    services = ["gateway", "planner", "omnibus/executors", "sidecar"]
    assert allowed_peers(objects, "nats", "ingress") == [(part, 4222) for part in services]
    assert allowed_peers(objects, "valkey", "ingress") == [("gateway", 6379), ("planner", 6379)]
    assert allowed_peers(objects, "nats", "egress") == allowed_peers(objects, "valkey", "egress") == []


def test_sidecars_reach_each_other_and_the_bus_and_are_reached_by_nobody_else(render_chart: Renders):
    objects, alone = render_chart({}), render_chart(SHAPES["one_node"])

    assert allowed_peers(objects, "sidecar", "ingress") == [("anyone", 9090), ("sidecar", 7400)]
    assert allowed_peers(objects, "sidecar", "egress") == [*DNS, ("nats", 4222), ("sidecar", 7400)]
    other_parts = [part for part, _ in iterate_pods(objects) if part != "sidecar"]
    assert [part for part in other_parts if 7400 in {port for _, port in allowed_peers(objects, part, "egress")}] == []
    assert allowed_peers(alone, "sidecar", "ingress") == [("anyone", 9090)]
    assert allowed_peers(alone, "sidecar", "egress") == DNS
    assert ("sidecar", 4222) not in allowed_peers(alone, "nats", "ingress")


def test_servers_of_your_own_are_reached_at_their_ports(render_chart: Renders):
    objects = render_chart(SHAPES["own_servers"])

    assert {port for _, port in allowed_peers(objects, "planner", "egress")} == {53, 4333, 6380, 443, 6443}
    assert {port for _, port in allowed_peers(objects, "llm", "egress")} == {53, 4333}
    assert {"nats", "valkey"}.isdisjoint(part for part, _ in iterate_pods(objects))


def test_every_pod_is_under_a_policy(render_chart: Renders):
    for shape in ("gpu", "fixed_groups", "keda"):
        objects = render_chart(SHAPES[shape])
        assert all(allowed_peers(objects, part, "ingress") for part, _ in iterate_pods(objects))


def test_overlays_say_nothing_that_the_chart_does_not_know():
    whole = yaml.safe_load((CHART / "values.yaml").read_text())
    for path in sorted(CHART.glob("values-*.yaml")):
        assert yaml.safe_load(path.read_text()).keys() <= whole.keys()
