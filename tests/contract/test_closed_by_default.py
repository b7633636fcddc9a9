"""Addresses and containers are closed by default; few modules open URLs."""

import ast
import ipaddress
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from omnibus.bus import permissions
from omnibus.settings import BusSettings, GatewaySettings, ServiceSettings, StoreSettings
from omnibus.up import infra

ROOT = Path(__file__).parents[2]
SOURCE = sorted(path for room in ("shared", "services") for path in (ROOT / room).rglob("*.py"))
LAYERS = sorted((ROOT / "deploy/compose").glob("compose*.yaml"))
#: Modules that open URLs or connections to other machines.
OPENERS = {"urllib.request", "http.client", "requests", "httpx", "aiohttp", "ftplib", "urllib3", "smtplib", "telnetlib"}
IMPORT_OF_OPENER = re.compile(
    rf"^\s*(?:from|import)\s.*\b(?:{'|'.join(sorted({name.partition('.')[0] for name in OPENERS}))})\b", re.MULTILINE
)
#: File to what it connects to. Media of clients are fetched by ``services/gateway/omnibus_gateway/media/fetcher.py`` alone, on plain sockets.
MAY_OPEN = {
    "shared/omnibus/up/health.py": "the gateway that it started",
    "shared/omnibus/cli/gateway.py": "the gateway that was named",
    "services/planner/omnibus_planner/reconcile/kube_client.py": "the cluster's API server",
}


def is_local_host(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


# Addresses


def test_every_address_is_loopback_unless_told_otherwise():
    assert is_local_host(GatewaySettings().host)
    assert is_local_host(ServiceSettings().metrics_host)
    for url in (BusSettings().url, StoreSettings().url):
        assert is_local_host(urlsplit(url).hostname or "")


def test_servers_that_are_started_here_listen_on_loopback(tmp_path: Path):
    assert infra.prepare_nats(tmp_path).spec.argv[2:4] == ("-a", "127.0.0.1")
    assert infra.prepare_valkey(tmp_path).spec.argv[1:3] == ("--bind", "127.0.0.1")


def test_what_could_be_open_is_not_by_default():
    usual = GatewaySettings()

    assert (usual.allow_http, usual.allow_private, usual.app_uploads, usual.admin_token) == (False, False, False, "")


# Who opens URLs


def test_nothing_but_the_fetcher_opens_urls_of_clients():
    modules = {str(path.relative_to(ROOT)): _find_openers(path.read_text()) for path in SOURCE}

    assert {name: imports for name, imports in modules.items() if imports and name not in MAY_OPEN} == {}


def test_who_opens_urls_is_seen():
    assert _find_openers("def read():\n    from urllib import request, parse") == {"urllib.request"}
    assert _find_openers("import httpx as http\nimport json") == {"httpx"}
    assert _find_openers("from urllib.parse import urlsplit\nimport http") == set()


def _find_openers(code: str) -> set[str]:
    """Modules of ``OPENERS`` that ``code`` imports; without their names, it is not parsed."""
    if not IMPORT_OF_OPENER.search(code):
        return set()
    return {name for node in ast.walk(ast.parse(code)) for name in _imported_modules(node)} & OPENERS


def _imported_modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [name.name for name in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
    return []


# Containers


def list_services() -> list[tuple[str, str, dict[str, Any]]]:
    """Every service of every layer that names its image: file, name, and image."""
    entries = []
    for layer in LAYERS:
        for name, spec in yaml.safe_load(layer.read_text())["services"].items():
            entries.append((layer.name, name, spec))
    return entries


def to_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize(("layer", "name", "spec"), list_services(), ids=to_text)
def test_no_container_has_more_than_it_needs(layer: str, name: str, spec: dict[str, Any]):
    assert not spec.get("privileged")
    assert not spec.get("cap_add")
    assert spec.get("network_mode") != "host"
    assert "host" not in {spec.get("ipc"), spec.get("pid"), spec.get("userns_mode")}
    assert not [volume for volume in spec.get("volumes", []) if "docker.sock" in str(volume)]
    for port in spec.get("ports", []):
        assert str(port).startswith("127.0.0.1:"), f"{name} in {layer} publishes {port} to everybody"


IMAGES = [each for each in list_services() if "image" in each[2]]
#: They write to a volume of root, without any other capability of root.
ROOTS = {"models", "nats"}


@pytest.mark.parametrize(("layer", "name", "spec"), IMAGES, ids=to_text)
def test_containers_have_no_privileges_and_a_root_that_they_cannot_write(layer: str, name: str, spec: dict[str, Any]):
    assert spec["read_only"] is True
    assert spec["cap_drop"] == ["ALL"]
    assert spec["security_opt"] == ["no-new-privileges:true"]
    assert name in ROOTS or spec.get("user") not in ("root", "0")


def test_there_are_containers_to_look_at():
    assert {name for _, name, _ in IMAGES} >= {"gateway", "planner", "sidecar", "encoder", "llm", "generator", *ROOTS}


def test_the_image_runs_as_nobody_special():
    steps = [line.split(None, 1) for line in (ROOT / "deploy/Dockerfile").read_text().splitlines() if line.strip()]
    last = max(index for index, step in enumerate(steps) if step[0] == "FROM")
    users = [step[1] for step in steps[last:] if step[0] == "USER"]

    assert users == ["omnibus"]
    assert any("useradd --uid 10001" in step[-1] for step in steps[last:])
    assert not [step for step in steps if step[0] == "ADD"]


def test_the_configuration_of_the_bus_for_containers_is_the_one_that_is_made():
    assert (ROOT / "deploy/compose/nats.conf").read_text() == permissions.server_config()


def test_the_store_for_containers_has_a_password_and_a_network_of_its_own():
    text = (ROOT / "deploy/compose/compose.users.yaml").read_text()
    layer = yaml.safe_load(text)
    beside = {name for name, spec in layer["services"].items() if "store" in spec.get("networks", [])}

    assert layer["networks"]["store"]["internal"] is True
    assert layer["services"]["valkey"]["networks"] == ["store"]
    assert beside == {"valkey", "gateway", "planner"}
    assert "requirepass $$OMNIBUS_STORE_PASSWORD" in layer["services"]["valkey"]["command"][-1]
    for name in ("gateway", "planner"):
        environment = layer["services"][name]["environment"]
        assert environment["OMNIBUS_STORE_URL"] == "redis://:${OMNIBUS_STORE_PASSWORD:?}@valkey:6379/0"
        assert environment["OMNIBUS_STORE_SECRET"] == "${OMNIBUS_STORE_SECRET:?}"


def test_each_container_on_the_bus_has_the_user_of_its_service():
    base = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text())["services"]
    layer = yaml.safe_load((ROOT / "deploy/compose/compose.users.yaml").read_text())["services"]
    users = {
        name: spec["environment"].get("OMNIBUS_BUS_USER")
        for name, spec in layer.items()
        if name not in ("nats", "valkey")
    }

    on_bus = {name for name, spec in base.items() if to_text(spec.get("image")).startswith("omnibus-")}
    assert users.keys() == on_bus - {"models", "sidecar"}
    for name, user in users.items():
        assert base[name]["image"] == f"omnibus-{user}"
        assert user in permissions.permissions_by_user()
