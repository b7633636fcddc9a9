"""Qwen2.5-VL in every usual shape: encoder and thinker apart (E, L), together (EL), and in two halves (P, D, EPD)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from omnibus.families import catalog
from tests.e2e.system import VL, System, declare_model, start_system

HALVES = f"{VL}-halves"
#: Free memory returns to the system soon, so resident memory is memory in use.
TIDY = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_MMAP_THRESHOLD_": "65536"}


@pytest.fixture(scope="package")
def soak_system(tmp_path_factory: pytest.TempPathFactory, vl_checkpoint: Path) -> Iterator[System]:
    models = {
        VL: declare_model("qwen2_5_vl", vl_checkpoint),
        HALVES: catalog.split_declaration("qwen2_5_vl", str(vl_checkpoint), "E>P>D", "EPD"),
    }
    # A crowd may wait as long as a busy machine takes for it.
    patient = {"OMNIBUS_GATEWAY_QUEUE_SECONDS": "600", "OMNIBUS_GATEWAY_DEADLINE": "600"}
    with start_system(tmp_path_factory.mktemp("soak"), models, **TIDY, **patient) as system:
        yield system
