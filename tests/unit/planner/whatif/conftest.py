"""Questions whose plans are made in one round: a second one takes seconds, and none of these tests is about it."""

import pytest


@pytest.fixture(autouse=True)
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate each plan once."""
    monkeypatch.setenv("OMNIBUS_PLANNER_SIMULATE", "0.01")
