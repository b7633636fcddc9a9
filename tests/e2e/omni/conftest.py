"""Qwen2.5-Omni in five executors, and in one.

The five are EV, EA, Th, Ta and V; the one is M.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.system import OMNI, System, declare_model, start_system


@pytest.fixture(scope="package")
def omni(tmp_path_factory: pytest.TempPathFactory, omni_checkpoint: Path) -> Iterator[System]:
    directory = tmp_path_factory.mktemp("omni")
    with start_system(directory, {OMNI: declare_model("qwen2_5_omni", omni_checkpoint)}) as system:
        yield system


@pytest.fixture(autouse=True)
async def everybody(omni: System) -> dict[str, int]:
    """Process id of every executor, once all are registered with the gateway."""
    pids = await omni.whole()
    await omni.becomes_ready()
    return pids
