"""Four models on three nodes, where every split path crosses nodes.

Executors alternate between nodes.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.routes.conftest import single_option
from tests.e2e.system import OMNI, VL, System, declare_model, start_system

NODES = 3
PAINTER, DIRECTOR = "qwen-image-tiny", "ltx2-tiny"


@pytest.fixture(scope="package")
def nodes(
    tmp_path_factory: pytest.TempPathFactory,
    vl_checkpoint: Path,
    omni_checkpoint: Path,
    image_checkpoint: Path,
    ltx2_checkpoint: Path,
) -> Iterator[System]:
    models = {
        OMNI: declare_model("qwen2_5_omni", omni_checkpoint),
        VL: declare_model("qwen2_5_vl", vl_checkpoint),
        PAINTER: declare_model("qwen_image", image_checkpoint),
        DIRECTOR: single_option(declare_model("ltx2", ltx2_checkpoint), "M"),
    }
    with start_system(
        tmp_path_factory.mktemp("nodes"),
        models,
        "--nodes",
        str(NODES),
        "--gateways",
        "2",
        OMNIBUS_GATEWAY_QUARANTINE="0",  # executors are killed from outside here
        OMNIBUS_EXECUTOR_INLINE="256",  # these models are so small that otherwise little is pulled
    ) as system:
        yield system


@pytest.fixture(autouse=True)
async def executor_pids(nodes: System) -> dict[str, int]:
    """Process id of every executor, once all are registered with the gateways."""
    pids = await nodes.whole()
    await nodes.becomes_ready()
    return pids
