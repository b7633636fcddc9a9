"""Qwen2.5-VL in one executor with tight limits: nothing can move, everything has an end. And a pair of gateways."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.system import VL, System, declaration, running

DEADLINE = 3.0  # seconds
MAX_BODY = 1 << 20  # bytes
CREDITS = 3
DRAIN = 2.5  # seconds


@pytest.fixture(scope="package")
def small(tmp_path_factory: pytest.TempPathFactory, vl_checkpoint: Path) -> Iterator[System]:
    model = declaration(
        "qwen2_5_vl",
        vl_checkpoint,
        options={"EL": {"components": ["vision", "thinker"], "service": "llm"}},
        paths=[{"options": ["EL"], "share": 1}],
    )
    with running(
        tmp_path_factory.mktemp("small"),
        {VL: model},
        OMNIBUS_GATEWAY_DEADLINE=str(DEADLINE),
        OMNIBUS_GATEWAY_MAX_BODY=str(MAX_BODY),
        OMNIBUS_GATEWAY_RECORD="digest",
        OMNIBUS_GATEWAY_QUARANTINE="0",  # executors are killed from outside here
        OMNIBUS_EXECUTOR_CREDITS=str(CREDITS),
    ) as system:
        yield system


@pytest.fixture(scope="package")
def pair(tmp_path_factory: pytest.TempPathFactory, vl_checkpoint: Path) -> Iterator[System]:
    """Two gateways before an encoder (E), two thinkers (L) and one executor of both (EL)."""
    model = declaration("qwen2_5_vl", vl_checkpoint)
    options = {**model["options"], "L": {**model["options"]["L"], "replicas": 2}}
    with running(
        tmp_path_factory.mktemp("pair"),
        {VL: {**model, "options": options}},
        "--gateways",
        "2",
        OMNIBUS_SERVICE_DRAIN=str(DRAIN),
    ) as system:
        yield system
