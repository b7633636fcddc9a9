"""Fixtures for questions planned in one round. A second one takes seconds and is not tested here."""

import pytest


@pytest.fixture(autouse=True)
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate each plan once."""
    monkeypatch.setenv("OMNIBUS_PLANNER_SIMULATE", "0.01")
