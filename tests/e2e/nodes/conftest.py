"""Four models on three nodes, where every split path crosses nodes.

Executors alternate between nodes.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.routes.conftest import only
from tests.e2e.system import OMNI, VL, System, declaration, running

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
        OMNI: declaration("qwen2_5_omni", omni_checkpoint),
        VL: declaration("qwen2_5_vl", vl_checkpoint),
        PAINTER: declaration("qwen_image", image_checkpoint),
        DIRECTOR: only(declaration("ltx2", ltx2_checkpoint), "M"),
    }
    with running(
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
async def everybody(nodes: System) -> dict[str, int]:
    """Process id of every executor, once all are registered with the gateways."""
    pids = await nodes.whole()
    await nodes.becomes_ready()
    return pids
