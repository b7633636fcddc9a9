"""Qwen2.5-VL as encoder and LLM apart (E, L) and together (EL): three executors."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.system import VL, System, declare_model, start_system


@pytest.fixture(scope="package")
def vl(tmp_path_factory: pytest.TempPathFactory, vl_checkpoint: Path) -> Iterator[System]:
    directory = tmp_path_factory.mktemp("vl")
    # Executors are killed from outside here, which does not depend on their input.
    settings = {"OMNIBUS_GATEWAY_QUARANTINE": "0"}
    with start_system(directory, {VL: declare_model("qwen2_5_vl", vl_checkpoint)}, **settings) as system:
        yield system


@pytest.fixture(autouse=True)
async def executor_pids(vl: System) -> dict[str, int]:
    """Process id of every executor, once all are registered with the gateway."""
    pids = await vl.whole()
    await vl.becomes_ready()
    return pids
