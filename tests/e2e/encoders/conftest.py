"""Qwen2.5-VL with two encoders (E), one LLM (L), and two gateways."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.system import VL, System, declare_model, start_system

ENCODERS = 2


@pytest.fixture(scope="package")
def encoders(tmp_path_factory: pytest.TempPathFactory, vl_checkpoint: Path) -> Iterator[System]:
    model = declare_model(
        "qwen2_5_vl",
        vl_checkpoint,
        options={
            "E": {"components": ["vision"], "service": "encoder", "replicas": ENCODERS},
            "L": {"components": ["thinker"], "service": "llm"},
        },
        paths=[{"options": ["E", "L"], "share": 1}],
    )
    with start_system(tmp_path_factory.mktemp("encoders"), {VL: model}, "--gateways", "2") as system:
        yield system
