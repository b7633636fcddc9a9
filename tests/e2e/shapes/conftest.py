"""Language models in two halves: an executor of every shape (E, P, D, EP, ED, PD, EPD), and an omni model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from omnibus.families import catalog
from tests.e2e.system import OMNI, VL, System, start_system

#: Paths of a request with an image, and of one without.
PATHS = {"E>P>D": "P>D", "EP>D": "EP>D", "ED>P": "P>ED", "E>PD": "PD", "EPD": "EPD"}


@pytest.fixture(scope="package")
def shapes(tmp_path_factory: pytest.TempPathFactory, vl_checkpoint: Path, omni_checkpoint: Path) -> Iterator[System]:
    omni = catalog.split_declaration("qwen2_5_omni", str(omni_checkpoint), "P>D")
    rest = {"components": ["vision", "audio", "talker", "vocoder"], "service": "llm"}
    omni |= {"options": {**omni["options"], "R": rest}, "paths": [{"options": ["R", "P", "D"], "share": 1}]}
    models = {VL: catalog.split_declaration("qwen2_5_vl", str(vl_checkpoint), *PATHS), OMNI: omni}
    models[VL] |= {"options": {name: {**option, "replicas": 1} for name, option in models[VL]["options"].items()}}
    models[VL]["options"]["P"]["replicas"] = 2  # of which one may become a decode
    # With goals, so that encoders and language models of one executor share a loop.
    goals = {"OMNIBUS_EXECUTOR_TTFT": "1.0", "OMNIBUS_EXECUTOR_TBT": "0.2"}
    with start_system(tmp_path_factory.mktemp("shapes"), models, **goals) as system:
        yield system


@pytest.fixture(autouse=True)
async def executor_pids(shapes: System) -> dict[str, int]:
    """Process id of every executor, once all are registered with the gateway."""
    pids = await shapes.whole()
    await shapes.becomes_ready()
    return pids
