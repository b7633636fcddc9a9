"""Compose itself reads the layers in every combination, with any version."""

import json
import subprocess
from itertools import combinations
from typing import Any

import pytest
import yaml

from tests.e2e.compose.stack import FILES, guard_variables
from tests.e2e.docker_engine import DockerEngine

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1500)]

MORE = ("compose.gpu.yaml", "compose.observability.yaml", "compose.users.yaml", "compose.ha.yaml")
CHOICES = [chosen for count in range(5) for chosen in combinations(MORE, count)]


def read_config(engine: DockerEngine, *layers: str, **env: str) -> str:
    files = [part for name in ("compose.yaml", *layers) for part in ("-f", name)]
    return engine.run_compose(*files, "config", within=60, cwd=FILES, env=env)


def read_services(engine: DockerEngine, *layers: str, **env: str) -> dict[str, Any]:
    """Services that compose reads from the layers."""
    try:
        config_text = read_config(engine, *layers, **env)
    except subprocess.CalledProcessError as error:
        pytest.fail(f"{error}\n{error.output}")
    assert "WARN" not in config_text.upper()
    return yaml.safe_load(config_text)["services"]


@pytest.mark.parametrize("layers", CHOICES, ids="+".join)
def test_compose_reads_the_layers_together(docker_engine: DockerEngine, layers: tuple[str, ...]):
    services = read_services(docker_engine, *layers, **guard_variables())

    llm = services["llm"]
    assert ("prometheus" in services) == ("compose.observability.yaml" in layers)
    assert ("OTEL_EXPORTER_OTLP_ENDPOINT" in llm["environment"]) == ("compose.observability.yaml" in layers)
    assert ('"gpu"' in json.dumps(llm.get("deploy", {}))) == ("compose.gpu.yaml" in layers)
    assert (llm["environment"].get("OMNIBUS_BUS_USER") == "llm") == ("compose.users.yaml" in layers)
    assert ("-c" in services["nats"]["command"]) == bool({"compose.users.yaml", "compose.ha.yaml"} & set(layers))
    assert ("nats-3" in services) == ("compose.ha.yaml" in layers)
    assert llm["environment"]["OMNIBUS_EXECUTOR_OPTION"] == "L"
    assert all(float(service["cpus"]) > 0 for service in services.values())


def test_keys_and_token_of_the_gateway_come_from_the_environment(docker_engine: DockerEngine):
    names = ("OMNIBUS_GATEWAY_KEYS", "OMNIBUS_GATEWAY_ADMIN_TOKEN")

    plain, guarded_gateway = (
        read_services(docker_engine)["gateway"],
        read_services(docker_engine, **guard_variables())["gateway"],
    )

    assert [str(plain["environment"][name]) for name in names] == ["false", ""]
    assert [str(guarded_gateway["environment"][name]) for name in names] == [guard_variables()[name] for name in names]


def test_users_without_their_passwords_are_not_started(docker_engine: DockerEngine):
    with pytest.raises(subprocess.CalledProcessError) as caught:
        read_config(docker_engine, "compose.users.yaml")

    assert "OMNIBUS_NATS_" in caught.value.output
