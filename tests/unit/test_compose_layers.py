"""The compose files as data: required settings of containers, consistent layers, and existing mounts."""

import json
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from omnibus.settings import GatewaySettings, ServiceSettings
from omnibus.settings import read_settings as load_settings
from tests import observed

ROOT = Path(__file__).parents[2]
HERE = ROOT / "deploy" / "compose"
BASE, GPU, OBSERVABILITY = "compose.yaml", "compose.gpu.yaml", "compose.observability.yaml"
USERS = "compose.users.yaml"
AVAILABLE = "compose.ha.yaml"
LAYERS = [BASE, GPU, OBSERVABILITY, USERS, AVAILABLE]
#: Services that a layer adds to the base.
FRESH = {
    OBSERVABILITY: {"prometheus", "grafana", "jaeger"},
    AVAILABLE: {"nats-2", "nats-3", "valkey-2", "sentinel", "sentinel-2", "sentinel-3"},
}
PORT = 9400
#: Its image has no program for a health check.
UNWATCHED = {"jaeger"}
#: A one-shot service.
ONCE = {"models"}


def load_layer(name: str) -> dict[str, Any]:
    return yaml.safe_load((HERE / name).read_text())


def merge_services(*names: str) -> dict[str, dict[str, Any]]:
    """Return the services of these layers merged; environments and volumes are added up."""
    result: dict[str, dict[str, Any]] = {}
    for name in names:
        for service, spec in load_layer(name)["services"].items():
            entry = result.setdefault(service, {})
            env = {**entry.get("environment", {}), **spec.get("environment", {})}
            volumes = [*entry.get("volumes", []), *spec.get("volumes", [])]
            entry.update(spec)
            entry.update({"environment": env, "volumes": volumes})
    return result


ALL = merge_services(*LAYERS)
OURS = {name for name, service in merge_services(BASE).items() if "build" in service} - ONCE


@pytest.mark.parametrize("layer", LAYERS[1:])
def test_a_layer_changes_services_that_there_are(layer: str):
    base = merge_services(BASE)
    fresh = {name for name, service in merge_services(layer).items() if name not in base}

    assert all("image" in ALL[name] for name in fresh)
    assert fresh == FRESH.get(layer, set())


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_container_has_limits(name: str):
    service = ALL[name]

    assert {"cpus", "mem_limit", "pids_limit"} <= service.keys()


@pytest.mark.parametrize("name", sorted(ALL.keys() - ONCE))
def test_every_container_that_stays_is_restarted_and_watched(name: str):
    service = ALL[name]

    assert service["restart"] == "unless-stopped"
    assert ("healthcheck" in service) == (name not in UNWATCHED)


@pytest.mark.parametrize("name", sorted(OURS | {"prometheus", "grafana", "jaeger"}))
def test_containers_can_do_little(name: str):
    service = ALL[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "user" not in service


@pytest.mark.parametrize("name", sorted(ALL))
def test_ports_are_published_on_loopback_alone(name: str):
    assert all(port.startswith("127.0.0.1:") for port in ALL[name].get("ports", ()))


@pytest.mark.parametrize("name", sorted(ALL))
def test_images_of_others_have_a_version(name: str):
    image = ALL[name].get("image", "")

    assert name in OURS | ONCE or re.search(r":-[\w./-]+:v?\d[\w.-]*\}$", image)


@pytest.mark.parametrize("name", sorted(ALL))
def test_what_is_mounted_is_there(name: str):
    volume_names = {volume for layer in LAYERS for volume in load_layer(layer).get("volumes", {})}
    sources = [volume.split(":")[0] for volume in ALL[name]["volumes"]]

    assert [source for source in sources if source not in volume_names and not (HERE / source).exists()] == []
    assert all(volume.endswith(":ro") for volume in ALL[name]["volumes"] if volume.startswith("."))


@pytest.mark.parametrize("name", sorted(OURS))
def test_a_service_serves_metrics_and_is_watched_there(name: str):
    service = merge_services(BASE)[name]

    assert service["environment"]["OMNIBUS_SERVICE_METRICS_PORT"] == str(PORT)
    assert f"127.0.0.1/{PORT} && printf 'GET /readyz " in service["healthcheck"]["test"][-1]
    assert not any(str(PORT) in port for port in service.get("ports", ()))


def test_prometheus_asks_every_service_of_ours():
    [job] = yaml.safe_load((observed.HERE / "prometheus.yml").read_text())["scrape_configs"]
    [config] = job["dns_sd_configs"]

    assert set(config["names"]) == OURS
    assert config["port"] == PORT
    assert {label["target_label"] for label in job["relabel_configs"]} == {"service"}


@pytest.mark.parametrize("name", ["prometheus.yml", "prometheus.local.yml"])
def test_both_prometheus_have_the_job_that_alerts_name(name: str):
    config = yaml.safe_load((observed.HERE / name).read_text())

    assert [job["job_name"] for job in config["scrape_configs"]] == ["omnibus"]
    assert config["rule_files"] == ["alerts.yml"]


def test_grafana_finds_the_dashboards_and_their_source():
    provisioning = observed.HERE / "grafana/provisioning"
    [provider] = yaml.safe_load((provisioning / "dashboards/omnibus.yaml").read_text())["providers"]
    sources = yaml.safe_load((provisioning / "datasources/omnibus.yaml").read_text())["datasources"]
    grafana = ALL["grafana"]
    mounts = dict(volume.split(":")[:2] for volume in grafana["volumes"])
    uids = set(re.findall(r'"uid": "(omnibus)"', json.dumps(observed.read_dashboards())))

    assert mounts["../observability/grafana/dashboards"] == provider["options"]["path"]
    assert mounts["../observability/grafana/provisioning"] == grafana["environment"]["GF_PATHS_PROVISIONING"]
    assert Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]).stem in observed.read_dashboards()
    assert uids <= {source["uid"] for source in sources}
    assert {source["url"].split("//")[1].split(":")[0] for source in sources} <= ALL.keys()


def test_images_have_what_sends_traces():
    installs = [line for line in (ROOT / "deploy/Dockerfile").read_text().splitlines() if "pip install" in line]

    assert installs[0].endswith('".[otel]"')


def test_what_the_gateway_is_closed_with_comes_from_the_environment_and_is_off_without_it():
    environment = merge_services(BASE)["gateway"]["environment"]
    variables = {name: value for name, value in environment.items() if str(value).startswith("${")}

    unset = {name: re.fullmatch(r"\$\{(\w+):-(.*)\}", value).groups() for name, value in variables.items()}
    assert {name: variable for name, (variable, _) in unset.items()} == {name: name for name in variables}
    assert variables.keys() == {"OMNIBUS_GATEWAY_KEYS", "OMNIBUS_GATEWAY_ADMIN_TOKEN", "OMNIBUS_STORE_SECRET"}
    assert load_settings(GatewaySettings, {name: value for name, (_, value) in unset.items()}) == GatewaySettings()


def test_all_services_send_their_traces_to_the_backend():
    layer = merge_services(OBSERVABILITY)

    assert {layer[name]["environment"].get("OTEL_EXPORTER_OTLP_ENDPOINT") for name in OURS} == {"http://jaeger:4318"}
    assert not any("OTEL_EXPORTER_OTLP_ENDPOINT" in service["environment"] for service in merge_services(BASE).values())


def test_executors_share_one_gpu_where_there_is_one():
    layer = merge_services(GPU)
    executors = {
        name for name, service in merge_services(BASE).items() if "OMNIBUS_EXECUTOR_MODEL" in service["environment"]
    }
    devices_by_service = {name: _read_devices(service) for name, service in layer.items() if "deploy" in service}

    assert devices_by_service.keys() == executors
    assert all(devices["capabilities"] == ["gpu"] for devices in devices_by_service.values())
    assert {layer[name]["environment"]["OMNIBUS_EXECUTOR_DEVICE"] for name in executors} == {"cuda"}


def _read_devices(service: Mapping[str, Any]) -> dict[str, Any]:
    [devices] = service["deploy"]["resources"]["reservations"]["devices"]
    return devices


@pytest.mark.parametrize("layers", [[BASE], [BASE, GPU]])
def test_the_sidecar_may_fill_the_arena(layers: list[str]):
    sidecar = merge_services(*layers)["sidecar"]
    arena = int(sidecar["environment"].get("OMNIBUS_SIDECAR_ARENA_MIB", "256"))

    assert _to_mib(sidecar["mem_limit"]) > arena


def test_whoever_touches_tensors_sees_the_arena_and_the_sidecar():
    shm = load_layer(BASE)["volumes"]["shm"]["driver_opts"]
    at = {
        name: {"shm:/dev/shm:nocopy", "run:/run/omnibus"} <= set(spec["volumes"])
        for name, spec in merge_services(BASE).items()
    }

    assert (shm["type"], shm["device"]) == ("tmpfs", "tmpfs")
    assert {name for name, sees in at.items() if sees} == OURS - {"planner"}


def _to_mib(size: str) -> int:
    return int(size[:-1]) * {"m": 1, "g": 1024}[size[-1]]


def test_the_plan_asks_for_the_executors_that_there_are():
    models = json.loads((HERE / "models.json").read_text())["models"]
    options = {
        (model, option, tuple(spec["components"]))
        for model, declaration in models.items()
        for option, spec in declaration["options"].items()
    }
    running = {
        (
            env["OMNIBUS_EXECUTOR_MODEL"],
            env["OMNIBUS_EXECUTOR_OPTION"],
            tuple(env["OMNIBUS_EXECUTOR_COMPONENTS"].split(",")),
        )
        for service in merge_services(BASE).values()
        if "OMNIBUS_EXECUTOR_MODEL" in (env := service["environment"])
    }

    assert running == options


@pytest.mark.parametrize("name", sorted(name for name in merge_services(BASE) if "build" in merge_services(BASE)[name]))
def test_no_service_is_killed_while_it_may_drain(name: str):
    if name in ONCE:
        return
    grace = float(merge_services(BASE)[name]["stop_grace_period"].removesuffix("s"))

    assert grace >= ServiceSettings().drain_seconds(name) + 5


def test_every_service_knows_all_servers_that_may_be_lost():
    layer = merge_services(AVAILABLE)
    bus = {layer[name]["environment"]["OMNIBUS_BUS_URL"] for name in OURS}
    stores = {layer[name]["environment"]["OMNIBUS_STORE_URL"] for name in ("gateway", "planner")}
    addresses = {f"{name}:26379" for name in layer if name.startswith("sentinel")}

    assert bus == {",".join(f"nats://{name}:4222" for name in layer if name.startswith("nats"))}
    assert {layer[name]["environment"]["OMNIBUS_BUS_REPLICAS"] for name in OURS} == {"3"}
    assert len(stores) == 1
    assert addresses == set(re.findall(r"sentinel[-\d]*:26379", stores.pop()))


def test_servers_of_a_cluster_lead_to_each_other():
    layer = merge_services(AVAILABLE)
    names = {name for name in layer if name.startswith("nats")}

    for name in names:
        command = layer[name]["command"]
        options = dict(pairwise(command))
        assert options["--name"] == name
        assert set(re.findall(r"//([\w-]+):", options["--routes"])) == names - {name}
