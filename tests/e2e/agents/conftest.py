"""A main machine and three agents, whose executors serve one model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import models_oracle as oracle
from tests.e2e.agents.cluster import QUESTION, TOKENS, AgentCluster
from tests.e2e.system import VL, System, declare_model
from tests.e2e.warm import may_start_warm

NAMES = {"n2", "n3", "n4"}
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
    directory = tmp_path_factory.mktemp("agents")
    model = declare_model("qwen2_5_vl", vl_checkpoint, options=_OPTIONS, paths=[{"options": ["E", "L"]}])
    flags = ("--listen", "127.0.0.1:0", "--slots", "0", "--node-name", "n1")
    system = System(directory, {VL: model}, _SETTINGS, flags, is_warm=may_start_warm(_SETTINGS))
    system.executors = set()  # none until agents join
    cluster = AgentCluster(system, directory)
    try:
        system.start()
        cluster.write_join_file()
        yield cluster
    except BaseException:
        print(system.log[-12_000:])
        raise
    finally:
        cluster.stop()
        leftovers = system.stop()
    assert leftovers == []


@pytest.fixture
async def cluster(started: AgentCluster) -> AgentCluster:
    """The cluster with all of its machines and executors."""
    await started.settle(NAMES, EXECUTORS)
    return started


@pytest.fixture(scope="package")
def reference_text(vl_checkpoint: Path) -> str:
    """Answer of the whole model."""
    return oracle.vl_answer(vl_checkpoint, QUESTION.plain, QUESTION.media, TOKENS)[1]
