"""Tests of several nodes, each with a network and shared memory of its own."""

import pytest

from tests.nodes.namespaces import missing_reason


@pytest.fixture(autouse=True, scope="session")
def has_namespaces() -> None:
    """Skip what cannot run here, and say why."""
    if reason := missing_reason():
        pytest.skip(reason)
