"""Compose itself reads the layers in every combination, with any version."""

import json
import subprocess
from itertools import combinations
from typing import Any

import pytest
import yaml

from tests.e2e.compose.stack import FILES, guards
from tests.e2e.docker_engine import Engine

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1500)]

MORE = ("compose.gpu.yaml", "compose.observability.yaml", "compose.users.yaml", "compose.ha.yaml")
CHOICES = [chosen for count in range(5) for chosen in combinations(MORE, count)]


def config(engine: Engine, *layers: str, **env: str) -> str:
    files = [part for name in ("compose.yaml", *layers) for part in ("-f", name)]
    return engine.run_compose(*files, "config", within=60, cwd=FILES, env=env)


def read(engine: Engine, *layers: str, **env: str) -> dict[str, Any]:
    """Services that compose reads from the layers."""
    try:
        printed = config(engine, *layers, **env)
    except subprocess.CalledProcessError as error:
        pytest.fail(f"{error}\n{error.output}")
    assert "WARN" not in printed.upper()
    return yaml.safe_load(printed)["services"]


@pytest.mark.parametrize("chosen", CHOICES, ids="+".join)
def test_compose_reads_the_layers_together(docker_engine: Engine, chosen: tuple[str, ...]):
    found = read(docker_engine, *chosen, **guards())

    llm = found["llm"]
    assert ("prometheus" in found) == ("compose.observability.yaml" in chosen)
    assert ("OTEL_EXPORTER_OTLP_ENDPOINT" in llm["environment"]) == ("compose.observability.yaml" in chosen)
    assert ('"gpu"' in json.dumps(llm.get("deploy", {}))) == ("compose.gpu.yaml" in chosen)
    assert (llm["environment"].get("OMNIBUS_BUS_USER") == "llm") == ("compose.users.yaml" in chosen)
    assert ("-c" in found["nats"]["command"]) == bool({"compose.users.yaml", "compose.ha.yaml"} & set(chosen))
    assert ("nats-3" in found) == ("compose.ha.yaml" in chosen)
    assert llm["environment"]["OMNIBUS_EXECUTOR_OPTION"] == "L"
    assert all(float(service["cpus"]) > 0 for service in found.values())


def test_keys_and_token_of_the_gateway_come_from_the_environment(docker_engine: Engine):
    names = ("OMNIBUS_GATEWAY_KEYS", "OMNIBUS_GATEWAY_ADMIN_TOKEN")

    plain, given = read(docker_engine)["gateway"], read(docker_engine, **guards())["gateway"]

    assert [str(plain["environment"][name]) for name in names] == ["false", ""]
    assert [str(given["environment"][name]) for name in names] == [guards()[name] for name in names]


def test_users_without_their_passwords_are_not_started(docker_engine: Engine):
    with pytest.raises(subprocess.CalledProcessError) as caught:
        config(docker_engine, "compose.users.yaml")

    assert "OMNIBUS_NATS_" in caught.value.output
