"""Compose itself reads the layers in every combination, whichever version it is."""

import json
import subprocess
from itertools import combinations

import pytest
import yaml

from omnibus.up.stack import ROOT
from tests.e2e.docker_engine import Engine

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(1500)]

HERE = ROOT / "deploy/compose"
MORE = ("compose.gpu.yaml", "compose.observability.yaml")
CHOICES = [chosen for count in range(3) for chosen in combinations(MORE, count)]


@pytest.mark.parametrize("chosen", CHOICES, ids="+".join)
def test_compose_reads_the_layers_together(docker_engine: Engine, chosen: tuple[str, ...]):
    files = [part for name in ("compose.yaml", *chosen) for part in ("-f", name)]

    try:
        printed = docker_engine.run_compose(*files, "config", within=60, cwd=HERE)
    except subprocess.CalledProcessError as error:
        pytest.fail(f"{error}\n{error.output}")

    found = yaml.safe_load(printed)["services"]
    llm = found["llm"]
    assert ("prometheus" in found) == ("compose.observability.yaml" in chosen)
    assert ("OTEL_EXPORTER_OTLP_ENDPOINT" in llm["environment"]) == ("compose.observability.yaml" in chosen)
    assert ('"gpu"' in json.dumps(llm.get("deploy", {}))) == ("compose.gpu.yaml" in chosen)
    assert llm["environment"]["OMNIBUS_EXECUTOR_OPTION"] == "L"
    assert all(float(service["cpus"]) > 0 for service in found.values())
