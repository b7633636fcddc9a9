"""A main machine and three agents, whose executors serve one model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import models_oracle as oracle
from tests.e2e.agents.cluster import QUESTION, TOKENS, AgentCluster, start_cluster
from tests.e2e.system import VL, declare_model

#: Executors of the model: two of each option.
EXECUTORS = 4
_OPTIONS = {
    "E": {"components": ["vision"], "service": "encoder", "replicas": 2},
    "L": {"components": ["thinker"], "service": "llm", "replicas": 2},
}
_SETTINGS = {
    "OMNIBUS_GATEWAY_QUARANTINE": "0",  # executors are killed from outside here
    "OMNIBUS_EXECUTOR_INLINE": "256",  # tensors of tiny models are so small that otherwise little is pulled
    "OMNIBUS_SIDECAR_PORT": "0",
    "OMNIBUS_SIDECAR_ARENA_MIB": "64",
}


@pytest.fixture(scope="package")
def started(tmp_path_factory: pytest.TempPathFactory, vl_checkpoint: Path) -> Iterator[AgentCluster]:
    model = declare_model("qwen2_5_vl", vl_checkpoint, options=_OPTIONS, paths=[{"options": ["E", "L"]}])
    with start_cluster(tmp_path_factory.mktemp("agents"), {VL: model}, _SETTINGS) as cluster:
        yield cluster


@pytest.fixture
async def cluster(started: AgentCluster) -> AgentCluster:
    """The cluster with all of its machines and executors."""
    await started.settle(started.names, EXECUTORS)
    return started


@pytest.fixture(scope="package")
def reference_text(vl_checkpoint: Path) -> str:
    """Answer of the whole model."""
    return oracle.vl_answer(vl_checkpoint, QUESTION.plain, QUESTION.media, TOKENS)[1]
