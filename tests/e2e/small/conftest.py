"""Qwen2.5-VL in one executor with tight limits: nothing can move, everything has an end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.system import VL, System, declaration, running

DEADLINE = 3.0  # seconds
MAX_BODY = 1 << 20  # bytes
CREDITS = 3


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
        OMNIBUS_EXECUTOR_CREDITS=str(CREDITS),
    ) as system:
        yield system
