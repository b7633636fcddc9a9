"""Tests of several nodes, each with a separate network and shared memory."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import omni_checkpoint  # noqa: F401
from tests.e2e.system import OMNI, System, declare_model
from tests.nodes.namespaces import Node, Switch, missing_reason
from tests.nodes.system import NODES, NamespaceSystem, network_of, node_settings


@pytest.fixture(autouse=True, scope="session")
def has_namespaces() -> None:
    """Skip tests that cannot run here, with the reason."""
    if reason := missing_reason():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def switch() -> Iterator[Switch]:
    if os.geteuid():
        pytest.skip("the whole system in namespaces needs root")
    with Switch() as switch:
        yield switch


@pytest.fixture(scope="module")
def other_nodes(switch: Switch) -> Iterator[list[Node]]:
    """All nodes but the hub."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(switch.add_node(f"n{index}")) for index in range(1, NODES)]


@pytest.fixture(scope="module")
def system(
    tmp_path_factory: pytest.TempPathFactory,
    omni_checkpoint: Path,  # noqa: F811
    switch: Switch,
    other_nodes: list[Node],
) -> Iterator[System]:
    settings = {
        **node_settings(switch, other_nodes),
        "OMNIBUS_GATEWAY_QUARANTINE": "0",
        "OMNIBUS_EXECUTOR_INLINE": "256",  # this model is so small that otherwise little is pulled
    }
    models = {OMNI: declare_model("qwen2_5_omni", omni_checkpoint)}
    new_system = NamespaceSystem(tmp_path_factory.mktemp("nodes"), models, settings, ("--nodes", str(NODES)))
    with network_of(switch.first_process):
        try:
            new_system.start()
            yield new_system
        except BaseException:
            print(new_system.log[-8000:])
            raise
        finally:
            leftovers = new_system.stop()
    assert leftovers == []
